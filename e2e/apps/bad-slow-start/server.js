setTimeout(() => {
  require("node:http")
    .createServer((request, response) => response.end("late but here"))
    .listen(process.env.PORT);
}, 8000);
