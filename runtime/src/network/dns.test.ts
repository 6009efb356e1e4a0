import dgram from "node:dgram";
import net from "node:net";
import { afterEach, expect, test } from "vitest";
import { DnsForwarder, failure } from "./dns.ts";

const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

/** A resolver on loopback that answers, over UDP and TCP, with what `answer` makes of the question. */
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

async function forwarder(options: { servers: string[]; serverPort: number; serverTimeoutMs?: number }) {
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
const answered = (question: Buffer) =>
  Buffer.concat([failure(question).fill(0x80, 2, 4), Buffer.from("answer")]);

test("a question goes to the resolver as it is and its answer comes back", async () => {
  const seen: Buffer[] = [];
  const serverPort = await resolver("127.0.0.1", (question) => {
    seen.push(question);
    return answered(question);
  });
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort });
  expect(await ask(port, QUESTION)).toEqual(answered(QUESTION));
  expect(seen).toEqual([QUESTION]);
});

test("an answer with another id is not taken for ours", async () => {
  const serverPort = await resolver("127.0.0.1", (question) => {
    const forged = answered(question);
    forged.writeUInt16BE(0x9999, 0);
    return forged;
  });
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort, serverTimeoutMs: 50 });
  expect(await ask(port, QUESTION)).toEqual(failure(QUESTION));
});

test("a resolver that is silent or refuses is passed over for the next", async () => {
  const serverPort = await resolver("127.0.0.1", answered);
  const silent = dgram.createSocket("udp4");
  await new Promise<void>((resolve) => silent.bind(serverPort, "127.0.0.2", resolve));
  cleanups.push(async () => silent.close());
  const port = await forwarder({
    servers: ["127.0.0.3", "127.0.0.2", "127.0.0.1"],
    serverPort,
    serverTimeoutMs: 50,
  });
  expect(await ask(port, QUESTION)).toEqual(answered(QUESTION));
});

test("without a resolver the asker hears of the failure and does not wait", async () => {
  const port = await forwarder({ servers: [], serverPort: 53 });
  const answer = await ask(port, QUESTION);
  expect(answer.subarray(0, 4).toString("hex")).toBe("12348102");
});

test("a question too many is answered with a failure at once, and the rest still go through", async () => {
  const waiting: (() => void)[] = [];
  const server = dgram.createSocket("udp4");
  await new Promise<void>((resolve) => server.bind(0, "127.0.0.1", resolve));
  cleanups.push(async () => server.close());
  server.on("message", (question, from) =>
    waiting.push(() => server.send(answered(question), from.port, from.address)),
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

test("what is no question is ignored and does no harm", async () => {
  const serverPort = await resolver("127.0.0.1", answered);
  const port = await forwarder({ servers: ["127.0.0.1"], serverPort });
  const socket = dgram.createSocket("udp4");
  cleanups.push(async () => socket.close());
  for (const noise of [Buffer.alloc(0), Buffer.alloc(11, 1), Buffer.alloc(2000, 0xff), answered(QUESTION)]) {
    socket.send(noise, port, "127.0.0.1");
  }
  expect(await ask(port, QUESTION)).toEqual(answered(QUESTION));
});

test("TCP is passed through, and closing lets go of a connection that idles", async () => {
  const serverPort = await resolver("127.0.0.1", answered);
  const dns = new DnsForwarder({ address: "127.0.0.1", servers: () => ["127.0.0.1"], serverPort });
  const port = await dns.open();
  const socket = net.connect(port, "127.0.0.1");
  socket.write(Buffer.concat([Buffer.from([0, QUESTION.length]), QUESTION]));
  const pieces: Buffer[] = [];
  for await (const piece of socket) pieces.push(piece as Buffer);
  expect(Buffer.concat(pieces).subarray(2)).toEqual(answered(QUESTION));

  const idle = net.connect(port, "127.0.0.1");
  await new Promise((resolve) => idle.once("connect", resolve));
  const closed = new Promise((resolve) => idle.once("close", resolve));
  idle.on("error", () => {});
  idle.resume();
  await dns.close();
  await closed;
});
