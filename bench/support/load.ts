/**
 * The client of the throughput benchmark, a process on its own core: a number of kept connections, each with one
 * request in flight. The client uses bare sockets, so that the client is not the bottleneck.
 *
 * Arguments: host, port, path, token, connections, seconds. Prints `{requests, seconds, failed}` as JSON.
 */
import { createConnection } from "node:net";

const [host = "", port, path = "/", token = "", connections, seconds] = process.argv.slice(2);
const request = Buffer.from(
  `GET ${path} HTTP/1.1\r\nhost: ${host}:${port}\r\nauthorization: Bearer ${token}\r\n\r\n`,
);
const ok = Buffer.from("HTTP/1.1 200");
const start = performance.now();
const end = start + Number(seconds) * 1000;
let requests = 0;
let failed = 0;

await Promise.all(Array.from({ length: Number(connections) }, () => askUntilTheEnd()));
process.stdout.write(JSON.stringify({ requests, seconds: (performance.now() - start) / 1000, failed }));

function askUntilTheEnd(): Promise<void> {
  return new Promise((resolve, reject) => {
    let waiting: Buffer = Buffer.alloc(0);
    const socket = createConnection({ host, port: Number(port), noDelay: true }, () => socket.write(request));
    socket.on("error", reject);
    socket.on("close", () => resolve());
    socket.on("data", (part) => {
      waiting = waiting.length === 0 ? part : Buffer.concat([waiting, part]);
      const length = answerLength(waiting);
      if (length === undefined || waiting.length < length) return;
      requests += 1;
      if (!waiting.subarray(0, 12).equals(ok)) failed += 1;
      waiting = waiting.subarray(length);
      if (performance.now() < end) socket.write(request);
      else socket.end();
    });
  });
}

/** Returns the length of the first response in the buffer; undefined while its head is incomplete. */
function answerLength(bytes: Buffer): number | undefined {
  const headEnd = bytes.indexOf("\r\n\r\n");
  if (headEnd < 0) return undefined;
  const length = /\r\ncontent-length: (\d+)/i.exec(bytes.toString("latin1", 0, headEnd))?.[1];
  if (length === undefined) throw new Error("an answer without a length");
  return headEnd + 4 + Number(length);
}
