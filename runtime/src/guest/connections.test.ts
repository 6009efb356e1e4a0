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

test("returns each connection once, whether the guest connects before or after the request", async () => {
  const connections = await listen();
  const later = connections.take();
  const first = await dial(connections);
  (await later).write("1");
  expect(String((await once(first, "data"))[0])).toBe("1");
  const second = await dial(connections);
  (await connections.take()).write("2");
  expect(String((await once(second, "data"))[0])).toBe("2");
});

test("times out when a machine never connects", async () => {
  const connections = await listen();
  await expect(connections.take(20)).rejects.toMatchObject({ kind: "timeout" });
});

test("keeps two spares, and closes further connections", async () => {
  const connections = await listen();
  const sockets = [await dial(connections), await dial(connections), await dial(connections)];
  await once((sockets[2] as Socket).resume(), "close");
  (await connections.take()).write("1");
  (await connections.take()).write("2");
  expect(String((await once(sockets[0] as Socket, "data"))[0])).toBe("1");
  expect(String((await once(sockets[1] as Socket, "data"))[0])).toBe("2");
});

test("closes a spare that sends before a request, and never returns it", async () => {
  const connections = await listen();
  const rude = await dial(connections);
  rude.resume().write("hello");
  await once(rude, "close");
  const polite = await dial(connections);
  (await connections.take()).write("1");
  expect(String((await once(polite, "data"))[0])).toBe("1");
});

test("reports a guest that disconnects and stays away as gone, and as back when it reconnects", async () => {
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

test("removes the socket and ends every connection on close, and can listen again", async () => {
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

test("closes the socket for a moment when a guest dials without end, keeps connections in use, and reopens it", async () => {
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
