/** A request of the server's own to an instance, its answer as a whole. What it says is a machine's word, and bounded. */
import { request } from "node:http";
import type { Duplex } from "node:stream";
import type { Guest } from "#machines/host/guest.ts";
import type { Asked } from "../functions/parts.ts";
import { responseTooLarge } from "./errors.ts";

export interface Answered {
  status: number;
  headers: Record<string, string>;
  body: Buffer;
}

const mostAnsweredMib = 6;

/** Undefined where nothing was sent, because nothing takes it. */
export async function ask(
  guest: Guest,
  port: number,
  asked: Asked,
  signal: AbortSignal,
): Promise<Answered | undefined> {
  const connection = await guest.connect(port).catch(() => undefined);
  if (connection === undefined) return undefined;
  try {
    return await exchange(connection, asked, signal);
  } finally {
    connection.destroy();
  }
}

function exchange(
  connection: Duplex,
  { method, path, headers, body }: Asked,
  signal: AbortSignal,
): Promise<Answered> {
  return new Promise((resolve, reject) => {
    const asked = request({
      // A guest's connection is a stream like any other; it is no socket, and nothing here asks that of it.
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
    asked.once("error", reject);
    // It closes before the rest of an answer was read; without one nothing else may be told.
    asked.once("close", () => {
      if (!isAnswered) reject(new Error("closed without an answer"));
    });
    asked.once("upgrade", (_answer, socket) => {
      socket.destroy();
      reject(new Error("switched protocols unasked"));
    });
    asked.once("response", (answer) => {
      isAnswered = true;
      const pieces: Buffer[] = [];
      let bytes = 0;
      answer.on("data", (piece: Buffer) => {
        bytes += piece.length;
        if (bytes > mostAnsweredMib * 1024 ** 2) asked.destroy(responseTooLarge(mostAnsweredMib));
        else pieces.push(piece);
      });
      answer.once("error", reject);
      answer.once("close", () => reject(new Error("the answer broke off")));
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
    asked.end(body);
  });
}
