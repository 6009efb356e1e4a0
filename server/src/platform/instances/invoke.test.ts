import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server } from "node:net";
import { afterEach, expect, test } from "vitest";
import type { Guest } from "#machines/host/guest.ts";
import { sendRequest } from "./invoke.ts";

let server: Server | undefined;
afterEach(() => server?.close());

async function answering(said: string): Promise<Guest> {
  server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () => socket.end(said));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  return { connect: async () => connect(port, "127.0.0.1") } as unknown as Guest;
}

const asked = { method: "GET", path: "/", headers: {}, body: Buffer.alloc(0) };
const { signal } = new AbortController();

test("returns status, headers and body of a response", async () => {
  const guest = await answering("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine");
  const answered = await sendRequest(guest, 8080, asked, signal);
  expect(answered).toMatchObject({ status: 200, body: Buffer.from("fine") });
});

test.each([
  [
    "switches protocols, which nobody asked of it",
    "HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
  ],
  ["answers with nothing", ""],
  ["breaks off", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"],
])("rejects a request when the process %s", async (_title, said) => {
  await expect(sendRequest(await answering(said), 8080, asked, signal)).rejects.toBeInstanceOf(Error);
});
