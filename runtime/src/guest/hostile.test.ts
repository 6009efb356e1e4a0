import { connect } from "node:net";
import { join } from "node:path";
import fc from "fast-check";
import { expect, onTestFinished, test } from "vitest";
import type { Socket } from "node:net";
import type { GuestProcess, OutputChunk } from "../driver.ts";
import { RuntimeError } from "../driver.ts";
import { GuestClient } from "./client.ts";
import { GuestConnections } from "./connections.ts";
import { MAX_FRAME_BYTES, encodeFrame, encodeHeader } from "./frames.ts";
import { REPLIES, encodeFields } from "./protocol.ts";
import { makeDirectory } from "./testing/guest-under-test.ts";

/** Starts a guest that calls `answer` for every request as soon as its first bytes arrive. */
async function hostile(answer: (socket: Socket) => void): Promise<GuestClient> {
  const connections = new GuestConnections(join(makeDirectory(), "s.sock"));
  await connections.listen();
  let over = false;
  onTestFinished(() => {
    over = true;
    return connections.close();
  });
  const dial = (): void => {
    if (over) return;
    const socket = connect(connections.path);
    socket.on("error", () => {});
    socket.once("data", () => {
      dial();
      answer(socket);
    });
  };
  dial();
  return new GuestClient(connections);
}

const frame = (type: number, fields: Parameters<typeof encodeFields>[0]): Buffer =>
  encodeFrame(type, encodeFields(fields));
const started = frame(REPLIES.STARTED, { pid: 1 });
const within = { mode: 0o644, roots: ["/"] };

async function drain(process: GuestProcess): Promise<OutputChunk[]> {
  const chunks: OutputChunk[] = [];
  for await (const chunk of process.output) chunks.push(chunk);
  return chunks;
}

test("rejects a length past the limit at once, in every kind of call", async () => {
  const guest = await hostile((socket) => socket.write(encodeHeader(REPLIES.OK, MAX_FRAME_BYTES + 1)));
  const broken = { kind: "guest_protocol" };
  await expect(guest.ping()).rejects.toMatchObject(broken);
  await expect(guest.list("/")).rejects.toMatchObject(broken);
  await expect(guest.readFile("/a")).rejects.toMatchObject(broken);
  await expect(guest.writeFile("/a", Buffer.alloc(9_000_000), within)).rejects.toMatchObject(broken);
  await expect(guest.spawn({ shell: "true", onDisconnect: "kill" })).rejects.toMatchObject(broken);
  await expect(guest.connect(1)).rejects.toMatchObject(broken);
  await expect(guest.commandLogs("c", 0, 10)).rejects.toMatchObject(broken);
});

test("rejects a reply out of order", async () => {
  const guest = await hostile((socket) => socket.write(Buffer.concat([started, frame(REPLIES.PONG, {})])));
  await expect(guest.ping()).rejects.toMatchObject({ kind: "guest_protocol" });
  const process = await guest.spawn({ shell: "true", onDisconnect: "kill" });
  await expect(drain(process)).rejects.toMatchObject({ kind: "guest_protocol" });
  await expect(process.exit).rejects.toMatchObject({ kind: "guest_protocol" });
});

test("reports a guest that disconnects within a reply as a dead machine", async () => {
  const guest = await hostile((socket) =>
    socket.end(Buffer.concat([started, encodeHeader(REPLIES.STDOUT, 9)])),
  );
  const process = await guest.spawn({ shell: "true", onDisconnect: "kill" });
  await expect(drain(process)).rejects.toMatchObject({ kind: "machine_died" });
  await expect(process.exit).rejects.toMatchObject({ kind: "machine_died" });
  await expect(guest.ping()).rejects.toBeInstanceOf(RuntimeError);
});

test("rejects an endless directory, file and log", async () => {
  const entry = frame(REPLIES.ENTRY, { name: "a", size: 0, mode: 0, modified_ms: 0, is_dir: 0 });
  const entries = Buffer.concat(Array.from({ length: 1000 }, () => entry));
  const flood =
    (bytes: Buffer) =>
    (socket: Socket): void => {
      const write = (): void => {
        while (!socket.destroyed && socket.write(bytes));
      };
      socket.on("drain", write);
      write();
    };
  const lists = await hostile(flood(entries));
  await expect(lists.list("/")).rejects.toMatchObject({ kind: "guest_protocol" });
  const chunk = frame(REPLIES.CHUNK, { stream: 1, offset: 0, data: Buffer.alloc(1000) });
  const logs = await hostile(flood(chunk));
  await expect(logs.commandLogs("c", 0, 5000)).rejects.toMatchObject({ kind: "guest_protocol" });
  const data = encodeFrame(REPLIES.DATA, Buffer.alloc(1000));
  const meta = frame(REPLIES.META, { size: 1, mode: 0, modified_ms: 0, is_dir: 0 });
  const files = await hostile((socket) => {
    socket.write(meta);
    flood(data)(socket);
  });
  const { content } = await files.readFile("/a", { maxBytes: 5000 });
  await expect(content.toArray()).rejects.toMatchObject({ kind: "guest_protocol" });
});

test("rejects a directory entry whose name leads to another directory", async () => {
  const entry = frame(REPLIES.ENTRY, { name: "../a", size: 0, mode: 0, modified_ms: 0, is_dir: 0 });
  const guest = await hostile((socket) => socket.write(entry));
  await expect(guest.list("/")).rejects.toMatchObject({ kind: "guest_protocol" });
});

test("leaves a flood of unread output in the kernel's buffers, not in the server's memory", async () => {
  const piece = encodeFrame(REPLIES.STDOUT, Buffer.alloc(MAX_FRAME_BYTES));
  let written = 0;
  const guest = await hostile((socket) => {
    socket.write(started);
    const write = (): void => {
      while (!socket.destroyed && socket.write(piece)) written += piece.length;
    };
    socket.on("drain", () => {
      written += piece.length;
      write();
    });
    write();
  });
  const process = await guest.spawn({ shell: "true", onDisconnect: "kill" });
  for (let turn = 0; turn < 50; turn++) await new Promise(setImmediate);
  expect(written).toBeLessThan(4 * 1024 * 1024);
  process.close();
  await expect(process.exit).rejects.toBeInstanceOf(RuntimeError);
});

test("ends every call in a value or a RuntimeError for random replies", async () => {
  let answer = Buffer.alloc(0);
  const guest = await hostile((socket) => void socket.end(answer));
  const types = fc.constantFrom(...Object.values(REPLIES));
  const stream = fc.array(fc.tuple(types, fc.uint8Array({ maxLength: 60 })), { maxLength: 4 });
  const calls: (() => Promise<unknown>)[] = [
    () => guest.ping(),
    () => guest.list("/"),
    () => guest.stat("/a"),
    () => guest.listCommands(),
    () => guest.commandLogs("c", 0, 1000),
    async () => (await guest.readFile("/a")).content.toArray(),
    () => guest.writeFile("/a", Buffer.alloc(100), within),
    async () => drain(await guest.spawn({ shell: "true", onDisconnect: "kill" })),
  ];
  await fc.assert(
    fc.asyncProperty(
      stream,
      fc.uint8Array({ maxLength: 20 }),
      fc.constantFrom(...calls),
      async (sent, rest, call) => {
        const frames = sent.map(([type, payload]) => encodeFrame(type, Buffer.from(payload)));
        answer = Buffer.concat([...frames, rest]);
        await call().catch((error: unknown) => expect(error).toBeInstanceOf(RuntimeError));
      },
    ),
    { numRuns: 500 },
  );
});
