/**
 * Requests of the wrapper's own, before it says that it is ready: V8 compiles a function when it is first called, and the
 * first visitor, who may have waited for a machine already, does not wait for that as well. They take the way of any
 * other, from a socket to the answer's last byte, on a port of their own; the handler has no part in it.
 */
import { once } from "node:events";
import { createServer } from "node:http";
import { connect } from "node:net";
import { exchange } from "./exchange.mjs";

/** What is not over by then is not waited for: it was to save time. */
const withinMs = 1_000;

const head = "host: localhost\r\nx-request-id: rehearsal\r\nx-forwarded-proto: https\r\n";
const requests = [
  `GET / HTTP/1.1\r\n${head}\r\n`,
  `POST / HTTP/1.1\r\n${head}content-type: text/plain\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}`,
];

/** Never fails. */
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
    // The first request compiles what this would have.
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

/** What handlers do most: a text, and JSON of what was sent. */
async function answer(request) {
  const { searchParams } = new URL(request.url);
  if (request.method === "GET") return new Response(`rehearsed ${searchParams.size}`);
  return Response.json(await request.json());
}
