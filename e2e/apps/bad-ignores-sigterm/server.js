process.on("SIGTERM", () => console.log("SIGTERM, and no thought of leaving"));
require("node:http")
  .createServer((request, response) => response.end("still here"))
  .listen(process.env.PORT);
