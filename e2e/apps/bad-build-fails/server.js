require("node:http")
  .createServer((request, response) => response.end("never built"))
  .listen(process.env.PORT);
