import { createServer, type AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { freePort, isPortFree, listeningInodes, portOwner } from "./port.ts";

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4343 1 0 20 4 30 10 -1
`;

test("finds only the socket that listens on the port", () => {
  expect(listeningInodes(table, 8080)).toEqual(["4242"]);
  expect(listeningInodes(table, 80)).toEqual([]);
});

test("reports a port in use together with the process that uses it", async () => {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  try {
    expect(await isPortFree(port, "127.0.0.1")).toBe(false);
    expect(portOwner(port)).toContain(`(pid ${process.pid})`);
  } finally {
    server.close();
  }
  expect(await isPortFree(await freePort(), "127.0.0.1")).toBe(true);
});
