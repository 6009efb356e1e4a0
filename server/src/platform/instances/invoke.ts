/**
 * Sends a request of the server to an instance, and collects the whole response. The response is untrusted, so it is
 * bounded.
 */
import { request } from "node:http";
import type { Duplex } from "node:stream";
import type { Guest } from "#machines/host/guest.ts";
import type { FunctionRequest } from "../functions/parts.ts";
import { responseTooLarge } from "./errors.ts";

export interface InstanceResponse {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
}

const maxResponseMib = 6;

/** Returns the response. Returns undefined if no process accepts the connection: nothing was sent then. */
export async function sendRequest(
  guest: Guest,
  port: number,
  outgoing: FunctionRequest,
  signal: AbortSignal,
): Promise<InstanceResponse | undefined> {
  const connection = await guest.connect(port).catch(() => undefined);
  if (connection === undefined) return undefined;
  try {
    return await exchange(connection, outgoing, signal);
  } finally {
    connection.destroy();
  }
}

function exchange(
  connection: Duplex,
  { method, path, headers, body }: FunctionRequest,
  signal: AbortSignal,
): Promise<InstanceResponse> {
  return new Promise((resolve, reject) => {
    const outgoing = request({
      // The guest's connection is a stream and not a socket. Here `http` calls no method that only a socket has.
      createConnection: () => connection as never,
      method,
      path,
      headers: {
        ...headers,
        connection: "close",
        ...(body.length > 0 ? { "content-length": String(body.length) } : {}),
      },
      maxHeaderSize: 64 * 1024,
      signal,
    });
    let isAnswered = false;
    outgoing.once("error", reject);
    // The connection may close before the whole response is read. Without a response, no other event reports that.
    outgoing.once("close", () => {
      if (!isAnswered) reject(new Error("closed without a response"));
    });
    outgoing.once("upgrade", (_answer, socket) => {
      socket.destroy();
      reject(new Error("switched protocols without a request"));
    });
    outgoing.once("response", (answer) => {
      isAnswered = true;
      const pieces: Buffer[] = [];
      let bytes = 0;
      answer.on("data", (piece: Buffer) => {
        bytes += piece.length;
        if (bytes > maxResponseMib * 1024 ** 2) outgoing.destroy(responseTooLarge(maxResponseMib));
        else pieces.push(piece);
      });
      answer.once("error", reject);
      answer.once("close", () => reject(new Error("the response was cut off")));
      answer.once("end", () => {
        const named = Object.entries(answer.headers).map(([name, value]) => [
          name,
          [value].flat().join(name === "set-cookie" ? "\n" : ", "),
        ]);
        resolve({
          status: answer.statusCode ?? 502,
          headers: Object.fromEntries(named) as Record<string, string>,
          body: Buffer.concat(pieces),
        });
      });
    });
    outgoing.end(body);
  });
}
