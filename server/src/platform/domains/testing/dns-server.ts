/** DNS server for tests, which serves a zone over UDP on loopback (RFC 1035, section 4). */
import dgram from "node:dgram";
import { once } from "node:events";

export interface Zone {
  [name: string]: { CNAME?: string; A?: string[]; AAAA?: string[]; TXT?: string[] };
}

export interface TestDns {
  /** Address of the server, in the form that a resolver expects. */
  address: string;
  /** Records by name, which tests may change at any time. */
  zone: Zone;
  /** While true, every response is SERVFAIL. */
  isBroken: boolean;
  /** Function that is awaited before each response. */
  onQuestion: () => Promise<void>;
  close(): Promise<void>;
}

const types = { 1: "A", 5: "CNAME", 16: "TXT", 28: "AAAA" } as const;
const codes = { CNAME: 5, A: 1, AAAA: 28, TXT: 16 } as const;

export async function serveDns(zone: Zone, port = 0): Promise<TestDns> {
  const socket = dgram.createSocket("udp4");
  socket.bind(port, "127.0.0.1");
  await once(socket, "listening");
  const server: TestDns = {
    address: `127.0.0.1:${socket.address().port}`,
    zone,
    isBroken: false,
    onQuestion: async () => {},
    close: () => new Promise((resolve) => socket.close(() => resolve())),
  };
  socket.on("message", (message, from) => {
    void server.onQuestion().then(() => socket.send(answer(message, server), from.port, from.address));
  });
  return server;
}

function answer(message: Buffer, { zone, isBroken }: TestDns): Buffer {
  let at = 12;
  const labels: string[] = [];
  for (let length = message[at]!; length !== 0; length = message[at]!) {
    labels.push(message.toString("latin1", at + 1, at + 1 + length));
    at += 1 + length;
  }
  const type = types[message.readUInt16BE(at + 1) as keyof typeof types];
  const question = message.subarray(12, at + 5);
  const found = zone[labels.join(".").toLowerCase()];
  // Like a real server, this one returns the alias of a name for a query of any type.
  const kind = found?.CNAME === undefined ? type : "CNAME";
  const values = kind === undefined ? [] : [found?.[kind] ?? []].flat();
  const records =
    isBroken || kind === undefined ? [] : values.map((value) => record(codes[kind], data(kind, value)));
  const header = Buffer.alloc(12);
  message.copy(header, 0, 0, 2);
  const code = isBroken ? 2 : found === undefined ? 3 : 0;
  header.writeUInt16BE(0x8180 | code, 2);
  header.writeUInt16BE(1, 4);
  header.writeUInt16BE(records.length, 6);
  return Buffer.concat([header, question, ...records]);
}

function record(type: number, bytes: Buffer): Buffer {
  const head = Buffer.alloc(12);
  // Pointer to the name in the question.
  head.writeUInt16BE(0xc00c, 0);
  head.writeUInt16BE(type, 2);
  head.writeUInt16BE(1, 4);
  head.writeUInt32BE(1, 6);
  head.writeUInt16BE(bytes.length, 10);
  return Buffer.concat([head, bytes]);
}

function data(kind: keyof typeof codes, value: string): Buffer {
  switch (kind) {
    case "A":
      return Buffer.from(value.split(".").map(Number));
    case "AAAA":
      return Buffer.from(value.replaceAll(":", ""), "hex");
    case "TXT":
      return Buffer.concat([Buffer.from([value.length]), Buffer.from(value)]);
    case "CNAME":
      return Buffer.concat([
        ...value.split(".").map((label) => Buffer.concat([Buffer.from([label.length]), Buffer.from(label)])),
        Buffer.from([0]),
      ]);
  }
}
