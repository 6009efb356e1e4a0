const { createServer } = require("node:http");

createServer((request, response) => response.end(process.argv.at(-1))).listen(process.env.PORT);
