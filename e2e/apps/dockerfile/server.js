const { readFileSync } = require("node:fs");
const { createServer } = require("node:http");

createServer((request, response) => {
  response.end(`${readFileSync("step.txt", "utf8").trim()}, run by ${process.getuid()}`);
}).listen(4000);
