/**
 * Sends requests to itself before the wrapper reports that it is ready. V8 compiles a function at its first call, and
 * the first visitor, who may have waited for a machine already, should not wait for that too. The requests pass the
 * whole way from a socket to the last byte of the response, on a separate port and without the handler.
 */
import { once } from "node:events";
import { createServer } from "node:http";
import { connect } from "node:net";
import { exchange } from "./exchange.mjs";

/** The rehearsal saves time, so it is cut off after this. */
const withinMs = 1_000;

const head = "host: localhost\r\nx-request-id: rehearsal\r\nx-forwarded-proto: https\r\n";
const requests = [
  `GET / HTTP/1.1\r\n${head}\r\n`,
  `POST / HTTP/1.1\r\n${head}content-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}`,
];

/** Errors are ignored. */
export async function rehearse(options, limits) {
  const server = createServer(options);
  server.on("request", (incoming, outgoing) => {
    void exchange(answer, { incoming, outgoing, limits, waitUntil: () => {} });
  });
  try {
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const socket = connect(server.address().port, "127.0.0.1");
    socket.setTimeout(withinMs, () => socket.destroy());
    socket.resume().write(requests.join(""));
    await once(socket, "close");
  } catch {
    // The first request then compiles the code.
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** The most frequent responses: a text, and JSON of the request's body. */
async function answer(request) {
  const { searchParams } = new URL(request.url);
  if (request.method === "GET") return new Response(`rehearsed ${searchParams.size}`);
  return Response.json(await request.json());
}
