/** Finds a free port for servers that must know their address before they listen. */
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";

export async function freePort(): Promise<number> {
  const server = createServer();
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = server.address() as AddressInfo;
  await once(server.close(), "close");
  return port;
}
