const line = `${"flood ".repeat(20)}\n`.repeat(1000);
let left = 200 * 1024 ** 2;
const pour = () => {
  while (left > 0) {
    left -= line.length;
    if (!process.stdout.write(line)) return process.stdout.once("drain", pour);
  }
  console.log("the flood is over");
};
require("node:http")
  .createServer((request, response) => response.end("dry"))
  .listen(process.env.PORT, pour);
