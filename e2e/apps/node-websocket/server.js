import { createServer } from "node:http";
import { WebSocketServer } from "ws";

const server = createServer((request, response) => response.end(`Plain Node heard ${request.method}`));
new WebSocketServer({ server }).on("connection", (socket) => {
  socket.on("message", (message) => socket.send(`echo ${message}`));
});
server.listen(process.env.PORT ?? 3000);
process.once("SIGTERM", () => server.close(() => process.exit(0)));
