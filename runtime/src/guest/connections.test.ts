import { existsSync } from "node:fs";
import { once } from "node:events";
import { connect } from "node:net";
import type { Socket } from "node:net";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { GuestConnections } from "./connections.ts";
import { makeDirectory } from "./testing/guest-under-test.ts";

async function listen(): Promise<GuestConnections> {
  const connections = new GuestConnections(join(makeDirectory(), "s.sock"));
  onTestFinished(() => connections.close());
  await connections.listen();
  return connections;
}

async function dial(connections: GuestConnections): Promise<Socket> {
  const socket = connect(connections.path);
  socket.on("error", () => {});
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return socket;
}

test("a connection is handed out once, whether it came before or after it was asked for", async () => {
  const connections = await listen();
  const later = connections.take();
  const first = await dial(connections);
  (await later).write("1");
  expect(String((await once(first, "data"))[0])).toBe("1");
  const second = await dial(connections);
  (await connections.take()).write("2");
  expect(String((await once(second, "data"))[0])).toBe("2");
});

test("a machine that never dials in is a timeout", async () => {
  const connections = await listen();
  await expect(connections.take(20)).rejects.toMatchObject({ kind: "timeout" });
});

test("only two spares are kept, what is dialled beyond them is closed", async () => {
  const connections = await listen();
  const sockets = [await dial(connections), await dial(connections), await dial(connections)];
  await once((sockets[2] as Socket).resume(), "close");
  (await connections.take()).write("1");
  (await connections.take()).write("2");
  expect(String((await once(sockets[0] as Socket, "data"))[0])).toBe("1");
  expect(String((await once(sockets[1] as Socket, "data"))[0])).toBe("2");
});

test("a spare that speaks before it is asked is closed and never handed out", async () => {
  const connections = await listen();
  const rude = await dial(connections);
  rude.resume().write("hello");
  await once(rude, "close");
  const polite = await dial(connections);
  (await connections.take()).write("1");
  expect(String((await once(polite, "data"))[0])).toBe("1");
});

test("a guest that hangs up and stays away is gone, and says so to who waits; when it dials in again it is back", async () => {
  const connections = await listen();
  const guest = await dial(connections);
  guest.destroy();
  await vi.waitUntil(() => !connections.isReady);
  const waiting = connections.take(60_000);
  const [refused] = await Promise.all([waiting.catch((error: unknown) => error), once(connections, "gone")]);
  expect(refused).toMatchObject({ kind: "machine_died" });
  await expect(connections.take()).rejects.toMatchObject({ kind: "machine_died" });
  const back = once(connections, "back");
  await dial(connections);
  await back;
  await connections.take();
});

test("closing removes the socket and ends every connection, spare or taken; listening again is possible", async () => {
  const connections = await listen();
  const taken = await dial(connections);
  await connections.take();
  const spare = await dial(connections);
  const ends = [once(taken.resume(), "close"), once(spare.resume(), "close")];
  await connections.close();
  await Promise.all(ends);
  expect(existsSync(connections.path)).toBe(false);
  await expect(connections.take()).rejects.toMatchObject({ kind: "not_running" });
  await connections.listen();
  await dial(connections);
  await connections.take();
});

test("a guest that dials without end loses the socket for a moment, what it had going goes on, and then it is back", async () => {
  const connections = await listen();
  const first = await dial(connections);
  const taken = await connections.take();
  for (let i = 0; i < 1000 && existsSync(connections.path); i++) {
    const socket = connect(connections.path);
    socket.on("error", () => {});
    socket.destroy();
    await new Promise(setImmediate);
  }
  expect(existsSync(connections.path)).toBe(false);
  taken.write("1");
  expect(String((await once(first, "data"))[0])).toBe("1");
  await vi.waitUntil(() => existsSync(connections.path), { timeout: 10_000 });
  await dial(connections);
  await connections.take();
});
