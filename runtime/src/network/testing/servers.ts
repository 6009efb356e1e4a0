/**
 * Servers of the internet, run inside its namespace: HTTP, TCP and UDP echo, DNS. The servers end when stdin closes.
 */
import dgram from "node:dgram";
import http from "node:http";
import net from "node:net";
import {
  DNS_ADDRESS,
  ECHO_PORT,
  HTTP_PORT,
  METADATA_ADDRESS,
  NAMES,
  PRIVATE_ADDRESSES,
  WEB_ADDRESS,
} from "./internet.ts";

const listening: Promise<unknown>[] = [];
const turns = new Map<string, number>();
const listen = (server: net.Server, port: number) =>
  listening.push(new Promise<void>((resolve) => server.listen(port, "::", resolve)));
/**
 * Binds each address separately: from 0.0.0.0, a reply would leave under the first address, and the client would ignore
 * it.
 */
const bind = (port: number, answer: (message: Buffer) => Buffer) => {
  for (const address of [WEB_ADDRESS, DNS_ADDRESS, METADATA_ADDRESS, ...PRIVATE_ADDRESSES]) {
    const socket = dgram.createSocket("udp4");
    socket.on("message", (message, from) => socket.send(answer(message), from.port, from.address));
    listening.push(new Promise<void>((resolve) => socket.bind(port, address, resolve)));
  }
};

listen(
  http.createServer((_request, response) => response.end("the internet of the tests\n")),
  HTTP_PORT,
);
listen(
  net.createServer((socket) => socket.on("error", () => {}).pipe(socket)),
  ECHO_PORT,
);
bind(ECHO_PORT, (message) => message);
bind(53, answerName);
listen(
  net.createServer((socket) =>
    socket
      .on("error", () => {})
      .on("data", (data) => {
        const answer = answerName(data.subarray(2));
        socket.write(Buffer.concat([Buffer.from([answer.length >> 8, answer.length & 255]), answer]));
      }),
  ),
  53,
);

/** Returns a single A record for an A question, and an empty answer for every other type (RFC 1035 §4). */
function answerName(question: Buffer): Buffer {
  // A message too short for a question is echoed, so that a test sees its arrival.
  if (question.length < 17) return question;
  const labels: string[] = [];
  let at = 12;
  for (let length = question[at] ?? 0; length > 0; length = question[at] ?? 0) {
    labels.push(question.toString("latin1", at + 1, at + 1 + length));
    at += 1 + length;
  }
  const end = at + 5;
  const isAddress = question.readUInt16BE(at + 1) === 1;
  const header = Buffer.from(question.subarray(0, 12));
  header.writeUInt16BE(0x8180, 2);
  header.fill(0, 6, 12);
  header.writeUInt16BE(isAddress ? 1 : 0, 6);
  const record = Buffer.from("c00c00010001000000050004", "hex");
  const address = Buffer.from(nextAddress(labels.join(".").toLowerCase()).split(".").map(Number));
  return Buffer.concat([header, question.subarray(12, end), ...(isAddress ? [record, address] : [])]);
}

function nextAddress(name: string): string {
  const addresses = NAMES[name] ?? [WEB_ADDRESS];
  const turn = turns.get(name) ?? 0;
  turns.set(name, turn + 1);
  return addresses[turn % addresses.length] ?? WEB_ADDRESS;
}

await Promise.all(listening);
process.stdout.write("ready\n");
process.stdin.resume().on("end", () => process.exit());
