const { createServer } = require("node:http");

const held = [];
createServer((request, response) => {
  if (request.url !== "/eat") return response.end("well fed");
  for (;;) held.push(Buffer.alloc(8 * 1024 ** 2, 1));
}).listen(process.env.PORT);
