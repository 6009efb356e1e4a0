/**
 * A receiver of webhooks: a real server that checks signatures as documented, with responses set by the test.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import { once } from "node:events";
import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface ReceivedDelivery {
  path: string;
  headers: IncomingMessage["headers"];
  body: Buffer;
  json: { event: string; delivery_id: string; timestamp: string; data: Record<string, unknown> };
}

export interface Receiver {
  url: string;
  received: ReceivedDelivery[];
  /** Sends the response; 204 by default. */
  answer: (got: ReceivedDelivery, response: ServerResponse) => void;
  close(): Promise<void>;
}

export async function startReceiver(): Promise<Receiver> {
  const server = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on("data", (part: Buffer) => parts.push(part));
    request.on("end", () => {
      const body = Buffer.concat(parts);
      const json = JSON.parse(body.toString()) as ReceivedDelivery["json"];
      const got = { path: request.url ?? "", headers: request.headers, body, json };
      receiver.received.push(got);
      receiver.answer(got, response);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const receiver: Receiver = {
    url: `http://127.0.0.1:${port}/hook`,
    received: [],
    answer: (_, response) => response.writeHead(204).end(),
    close: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, "close");
    },
  };
  return receiver;
}

/** True if the signature has exactly the documented form: `sha256=`, then the hex HMAC-SHA256 of the raw body. */
export function isSigned({ headers, body }: ReceivedDelivery, secret: string): boolean {
  const expected = Buffer.from(`sha256=${createHmac("sha256", secret).update(body).digest("hex")}`);
  const given = Buffer.from(String(headers["x-service-signature"]));
  return given.length === expected.length && timingSafeEqual(given, expected);
}
