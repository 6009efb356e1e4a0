require("node:http")
  .createServer((request, response) =>
    response.end(process.env.CANARY === undefined ? "no canary" : "it sings"),
  )
  .listen(process.env.PORT);
