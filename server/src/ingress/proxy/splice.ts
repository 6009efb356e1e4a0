/**
 * WebSockets and other upgrades. After the guest has accepted, the two connections are joined and their bytes pass
 * unread. Before that, the upgrade is an ordinary request, and a refusal is an ordinary response. Bytes pass only after
 * both sides have left HTTP, so no second request can follow.
 */
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import { type ForwardOptions, NoResponse, reasonOf } from "./forward.ts";
import { countHeads, countStream } from "./traffic.ts";

const maxHeaderBytes = 64 * 1024;
const answerMs = 60_000;
/** Idle timeout of a connection. The timeout is long, because many programs send nothing for long. */
const silentMs = 60 * 60_000;

export interface Upgrade {
  request: IncomingMessage;
  /** The visitor's connection, with the bytes that were read already. */
  socket: Duplex;
  head: Buffer;
  /** A response on that connection, for a guest that does not upgrade. */
  response: ServerResponse;
}

/** Resolves when the connection is over. Throws `NoResponse` only before it has written anything. */
export async function splice(
  stream: Duplex,
  { request, socket, head, response }: Upgrade,
  { path, headers, toVisitor, traffic }: Omit<ForwardOptions, "machine" | "port">,
): Promise<void> {
  const abort = () => stream.destroy();
  socket.once("close", abort);
  if (socket.destroyed) abort();
  const outgoing = http.request({
    createConnection: () => stream,
    method: request.method ?? "GET",
    path,
    headers,
    maxHeaderSize: maxHeaderBytes,
    insecureHTTPParser: false,
  });
  try {
    const { answer, rest } = await respondTo(outgoing);
    countHeads(traffic, headers, answer);
    if (rest === undefined) {
      countStream(traffic, "txBytes", answer);
      response.writeHead(answer.statusCode ?? 502, reasonOf(answer), [
        ...toVisitor(answer),
        "Connection",
        "close",
      ]);
      answer.pipe(response);
      answer.once("error", () => response.destroy());
      await waitForEnd(response);
      return;
    }
    response.detachSocket(socket as never);
    socket.write(switching(answer, toVisitor(answer)));
    if (rest.length > 0) socket.write(rest);
    if (head.length > 0) stream.write(head);
    for (const end of [socket, stream]) silence(end);
    countStream(traffic, "rxBytes", socket);
    countStream(traffic, "txBytes", stream);
    socket.pipe(stream);
    stream.pipe(socket);
    stream.once("close", () => socket.destroy());
    await waitForEnd(socket);
  } catch (error) {
    stream.destroy();
    throw error instanceof NoResponse ? error : new NoResponse("bad_response", { cause: error });
  } finally {
    socket.off("close", abort);
    stream.destroy();
  }
}

function respondTo(
  outgoing: http.ClientRequest,
): Promise<{ answer: IncomingMessage; rest: Buffer | undefined }> {
  return new Promise((resolve, reject) => {
    const late = setTimeout(() => outgoing.destroy(new NoResponse("timeout")), answerMs);
    outgoing.once("close", () => clearTimeout(late));
    outgoing.on("error", reject);
    outgoing.on("close", () => reject(new Error("closed without a response")));
    outgoing.on("upgrade", (answer: IncomingMessage, _socket: Duplex, rest: Buffer) => {
      clearTimeout(late);
      resolve({ answer, rest });
    });
    outgoing.on("response", (answer: IncomingMessage) => {
      clearTimeout(late);
      resolve({ answer, rest: undefined });
    });
    outgoing.end();
  });
}

/** Builds the response headers of the guest's acceptance. Node has parsed them: no value holds a line break. */
function switching(answer: IncomingMessage, headers: readonly string[]): string {
  const lines = headers.flatMap((name, at) => (at % 2 === 0 ? [`${name}: ${headers[at + 1]}\r\n`] : []));
  const upgrade = `Connection: Upgrade\r\nUpgrade: ${answer.headers.upgrade ?? ""}\r\n`;
  return `HTTP/1.1 101 Switching Protocols\r\n${upgrade}${lines.join("")}\r\n`;
}

function silence(end: Duplex): void {
  (end as Duplex & { setTimeout?: (ms: number, then: () => void) => void }).setTimeout?.(silentMs, () =>
    end.destroy(),
  );
}

function waitForEnd(stream: Duplex | ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    if (stream.destroyed) resolve();
    stream.once("close", resolve);
  });
}
