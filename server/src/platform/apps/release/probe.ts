/**
 * Checks that an app accepts connections on its port and responds to a request. The response's body is not read,
 * because the app is untrusted.
 */
import { request } from "node:http";
import type { Duplex } from "node:stream";
import type { Guest } from "#machines/host/guest.ts";

export async function isListening(guest: Guest, port: number): Promise<boolean> {
  const connection = await guest.connect(port).catch(() => undefined);
  connection?.destroy();
  return connection !== undefined;
}

/** Returns the status of a GET. Returns undefined without a response within `withinMs`. */
export async function requestStatus(
  guest: Guest,
  { port, path, host, withinMs = 5_000 }: { port: number; path: string; host: string; withinMs?: number },
  signal: AbortSignal,
): Promise<number | undefined> {
  let connection: Duplex | undefined;
  const within = AbortSignal.any([signal, AbortSignal.timeout(withinMs)]);
  try {
    connection = await guest.connect(port);
    return await status(connection, { path, host }, within);
  } catch {
    return undefined;
  } finally {
    connection?.destroy();
  }
}

function status(
  connection: Duplex,
  { path, host }: { path: string; host: string },
  signal: AbortSignal,
): Promise<number | undefined> {
  return new Promise((resolve, reject) => {
    const asked = request({
      // The guest's connection is a stream and not a socket. Here `http` calls no method that only a socket has.
      createConnection: () => connection as never,
      path,
      headers: { host, connection: "close", accept: "*/*", "user-agent": "Kontor-Health/1" },
      maxHeaderSize: 64 * 1024,
      signal,
    });
    asked.once("response", (answer) => {
      resolve(answer.statusCode);
      answer.destroy();
    });
    asked.once("error", reject);
    asked.end();
  });
}
