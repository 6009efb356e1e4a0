import dgram from "node:dgram";
import net from "node:net";
import { afterEach, expect, test } from "vitest";
import { DnsForwarder, failure, type DnsForwarderOptions } from "./dns.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

/** Starts a resolver on loopback, which sends the result of `answer` for each question over UDP and TCP. */
async function resolver(address: string, answer: (question: Buffer) => Buffer | undefined): Promise<number> {
  const tcp = net.createServer((socket) => {
    socket.on("data", (data) => {
      const reply = answer(data.subarray(2));
      if (reply !== undefined) socket.end(Buffer.concat([Buffer.from([0, reply.length]), reply]));
    });
    socket.on("error", () => {});
  });
  await new Promise<void>((resolve) => tcp.listen(0, address, resolve));
  const { port } = tcp.address() as net.AddressInfo;
  const udp = dgram.createSocket("udp4");
  await new Promise<void>((resolve) => udp.bind(port, address, resolve));
  udp.on("message", (question, from) => {
    const reply = answer(question);
    if (reply !== undefined) udp.send(reply, from.port, from.address);
  });
  cleanups.push(async () => {
    udp.close();
    await new Promise((resolve) => tcp.close(resolve));
  });
  return port;
}

async function forwarder(
  options: { servers: string[]; serverPort: number } & Partial<
    Omit<DnsForwarderOptions, "address" | "servers">
  >,
) {
  const dns = new DnsForwarder({ ...options, address: "127.0.0.1", servers: () => options.servers });
  const port = await dns.open();
  cleanups.push(() => dns.close());
  return port;
}

async function ask(port: number, question: Buffer): Promise<Buffer> {
  const socket = dgram.createSocket("udp4");
  try {
    return await new Promise((resolve) => {
      socket.once("message", resolve);
      socket.send(question, port, "127.0.0.1");
    });
  } finally {
    socket.close();
  }
}

const QUESTION = Buffer.from("1234010000010000000000000161026c6f0000010001", "hex");
const answerTo = (question: Buffer) =>
  Buffer.concat([failure(question).fill(0x80, 2, 4), Buffer.from("answer")]);

test("forwards a question unchanged to the resolver, and returns its answer", async () => {
  const seen: Buffer[] = [];
  const serverPort = await resolver("127.0.0.1", (question) => {
    seen.push(question);
    return answerTo(question);
  });
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort });
  expect(await ask(port, QUESTION)).toEqual(answerTo(QUESTION));
  expect(seen).toEqual([QUESTION]);
});

test("ignores an answer with another id", async () => {
  const serverPort = await resolver("127.0.0.1", (question) => {
    const forged = answerTo(question);
    forged.writeUInt16BE(0x9999, 0);
    return forged;
  });
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort, serverTimeoutMs: 50 });
  expect(await ask(port, QUESTION)).toEqual(failure(QUESTION));
});

test("queries the next resolver after a silent or refusing resolver", async () => {
  const serverPort = await resolver("127.0.0.1", answerTo);
  const silent = dgram.createSocket("udp4");
  await new Promise<void>((resolve) => silent.bind(serverPort, "127.0.0.2", resolve));
  cleanups.push(async () => silent.close());
  const port = await forwarder({
    servers: ["127.0.0.3", "127.0.0.2", "127.0.0.1"],
    serverPort,
    serverTimeoutMs: 50,
  });
  expect(await ask(port, QUESTION)).toEqual(answerTo(QUESTION));
});

test("returns a server failure at once without a resolver", async () => {
  const port = await forwarder({ servers: [], serverPort: 53 });
  const answer = await ask(port, QUESTION);
  expect(answer.subarray(0, 4).toString("hex")).toBe("12348102");
});

test("fails a question past the limit at once, and forwards the other questions", async () => {
  const waiting: (() => void)[] = [];
  const server = dgram.createSocket("udp4");
  await new Promise<void>((resolve) => server.bind(0, "127.0.0.1", resolve));
  cleanups.push(async () => server.close());
  server.on("message", (question, from) =>
    waiting.push(() => server.send(answerTo(question), from.port, from.address)),
  );
  const port = await forwarder({
    servers: ["127.0.0.1"],
    serverPort: server.address().port,
    serverTimeoutMs: 60_000,
  });
  const answers: Buffer[] = [];
  const asker = dgram.createSocket("udp4");
  cleanups.push(async () => asker.close());
  asker.on("message", (answer) => answers.push(answer));
  for (let index = 0; index < 65; index++) {
    const question = Buffer.from(QUESTION);
    question.writeUInt16BE(index, 0);
    asker.send(question, port, "127.0.0.1");
  }
  await expect.poll(() => answers.length + waiting.length).toBe(65);
  expect(answers.length).toBe(1);
  for (const answer of waiting) answer();
  await expect.poll(() => answers.length).toBe(65);
});

test("ignores a message that is not a question", async () => {
  const serverPort = await resolver("127.0.0.1", answerTo);
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort });
  const socket = dgram.createSocket("udp4");
  cleanups.push(async () => socket.close());
  for (const noise of [Buffer.alloc(0), Buffer.alloc(11, 1), Buffer.alloc(2000, 0xff), answerTo(QUESTION)]) {
    socket.send(noise, port, "127.0.0.1");
  }
  expect(await ask(port, QUESTION)).toEqual(answerTo(QUESTION));
});

test("forwards TCP, and closes an idle connection", async () => {
  const serverPort = await resolver("127.0.0.1", answerTo);
  const dns = new DnsForwarder({ address: "127.0.0.1", servers: () => ["127.0.0.1"], serverPort });
  const port = await dns.open();
  const socket = net.connect(port, "127.0.0.1");
  socket.write(Buffer.concat([Buffer.from([0, QUESTION.length]), QUESTION]));
  const pieces: Buffer[] = [];
  for await (const piece of socket) pieces.push(piece as Buffer);
  expect(Buffer.concat(pieces).subarray(2)).toEqual(answerTo(QUESTION));

  const idle = net.connect(port, "127.0.0.1");
  await new Promise((resolve) => idle.once("connect", resolve));
  const closed = new Promise((resolve) => idle.once("close", resolve));
  idle.on("error", () => {});
  idle.resume();
  await dns.close();
  await closed;
});

const INTERNAL = Buffer.from("12340100000100000000000002446204686f757308696e7465726e616c0000010001", "hex");
const addLength = (message: Buffer) => Buffer.concat([Buffer.from([0, message.length]), message]);

/** Returns all that one TCP connection delivers until its end. */
async function askByTcp(port: number, ...pieces: Buffer[]): Promise<Buffer> {
  const socket = net.connect(port, "127.0.0.1");
  const heard: Buffer[] = [];
  socket.on("data", (data) => heard.push(data));
  socket.on("error", () => {});
  const closed = new Promise((resolve) => socket.once("close", resolve));
  for (const piece of pieces) {
    socket.write(piece);
    await new Promise((resolve) => setImmediate(resolve));
  }
  socket.end();
  await closed;
  return Buffer.concat(heard);
}

async function withNames() {
  const seen: Buffer[] = [];
  const serverPort = await resolver("127.0.0.1", (question) => {
    seen.push(question);
    return answerTo(question);
  });
  const port = await forwarder({
    servers: ["127.0.0.1"],
    serverPort,
    internal: (asker, name) =>
      asker === "127.0.0.1" && name === "db.hous.internal" ? "198.19.0.1" : undefined,
  });
  return { port, seen };
}

test("answers a name below .internal itself, with the letter case of the question", async () => {
  const { port, seen } = await withNames();
  const answer = await ask(port, INTERNAL);
  expect(answer.subarray(0, 8).toString("hex")).toBe("1234858000010001");
  expect(answer.subarray(12, INTERNAL.length)).toEqual(INTERNAL.subarray(12));
  expect(answer.subarray(INTERNAL.length).toString("hex")).toBe("c00c00010001000000050004c6130001");
  expect(await askByTcp(port, addLength(INTERNAL))).toEqual(addLength(answer));
  const unknown = Buffer.from(INTERNAL).fill("x", 13, 15);
  expect((await ask(port, unknown)).subarray(2, 8).toString("hex")).toBe("858300010000");
  expect((await askByTcp(port, addLength(unknown))).subarray(4, 6).toString("hex")).toBe("8583");
  expect(seen).toEqual([]);
});

test("accepts TCP questions in pieces and in sequence, and ends the connection at a question of the other kind", async () => {
  const { port, seen } = await withNames();
  const own = addLength(await ask(port, INTERNAL));
  const both = Buffer.concat([addLength(INTERNAL), addLength(INTERNAL)]);
  expect(await askByTcp(port, both.subarray(0, 1), both.subarray(1, 20), both.subarray(20))).toEqual(
    Buffer.concat([own, own]),
  );
  await askByTcp(port, addLength(INTERNAL), addLength(QUESTION));
  expect(seen).toEqual([]);
  await askByTcp(port, addLength(QUESTION), addLength(INTERNAL));
  expect(seen.every((question) => question.equals(QUESTION))).toBe(true);
});

test("refuses a machine without access to outside names, and forwards none of its questions", async () => {
  const seen: Buffer[] = [];
  const serverPort = await resolver("127.0.0.1", (question) => void seen.push(question));
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort, mayResolveOutside: () => false });
  expect((await ask(port, QUESTION)).subarray(2, 4).toString("hex")).toBe("8105");
  expect((await askByTcp(port, addLength(QUESTION))).subarray(4, 6).toString("hex")).toBe("8105");
  expect(seen).toEqual([]);
});

test("returns a format error for a message that is not one question, and forwards nothing", async () => {
  const { port, seen } = await withNames();
  const twice = Buffer.from(QUESTION);
  twice.writeUInt16BE(2, 4);
  const pointer = Buffer.from(QUESTION).fill(0xc0, 12, 13);
  for (const message of [twice, pointer, QUESTION.subarray(0, -1)]) {
    expect((await ask(port, message)).subarray(2, 4).toString("hex")).toBe("8101");
  }
  expect(seen).toEqual([]);
});
