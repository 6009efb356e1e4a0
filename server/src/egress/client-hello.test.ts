import net from "node:net";
import { once } from "node:events";
import tls from "node:tls";
import fc from "fast-check";
import { expect, test } from "vitest";
import { readHello } from "./client-hello.ts";

/** Returns the first message of Node's own TLS (OpenSSL). */
async function realHello(options: tls.ConnectionOptions): Promise<Buffer> {
  const server = net.createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const client = tls.connect({ port, host: "127.0.0.1", ...options }).on("error", () => {});
  const [socket] = (await once(server, "connection")) as [net.Socket];
  socket.on("error", () => {});
  const parts: Buffer[] = [];
  for await (const part of socket) {
    parts.push(part as Buffer);
    if (readHello(Buffer.concat(parts)).state !== "incomplete") break;
  }
  client.destroy();
  socket.destroy();
  server.close();
  return Buffer.concat(parts);
}

const hello = await realHello({ servername: "web.test" });

/** Splits the message into records of at most `size` bytes. */
function splitRecords(bytes: Buffer, size: number): Buffer {
  const message = bytes.subarray(5);
  const records: Buffer[] = [];
  for (let at = 0; at < message.length; at += size) {
    const part = message.subarray(at, at + size);
    records.push(Buffer.from([22, 3, 1, part.length >> 8, part.length & 255]), part);
  }
  return Buffer.concat(records);
}

/** Builds a hello with these extensions: [type, content]. */
function buildHello(extensions: [number, Buffer][]): Buffer {
  const withLength = (width: 1 | 2, content: Buffer) => {
    const length = Buffer.alloc(width);
    length.writeUIntBE(content.length, 0, width);
    return Buffer.concat([length, content]);
  };
  const list = extensions.map(([type, content]) =>
    Buffer.concat([Buffer.from([type >> 8, type & 255]), withLength(2, content)]),
  );
  const body = Buffer.concat([
    Buffer.alloc(34, 3),
    withLength(1, Buffer.alloc(32)),
    withLength(2, Buffer.from("1301", "hex")),
    withLength(1, Buffer.from([0])),
    withLength(2, Buffer.concat(list)),
  ]);
  const message = Buffer.concat([Buffer.from([1, 0, body.length >> 8, body.length & 255]), body]);
  return splitRecords(Buffer.concat([Buffer.alloc(5), message]), 16_000);
}
const nameOf = (name: string, kind = 0) =>
  Buffer.concat([Buffer.from([0, name.length + 3, kind, 0, name.length]), Buffer.from(name)]);

test("reads the server name of a real hello", () => {
  expect(readHello(hello)).toEqual({ state: "complete", serverName: "web.test" });
});

test("returns null for a real hello without a server name", async () => {
  expect(readHello(await realHello({ servername: "" }))).toEqual({ state: "complete", serverName: null });
});

test("reads a hello that is split into records of any size", () => {
  for (const size of [1, 2, 3, 4, 5, 50, 16_000]) {
    expect(readHello(splitRecords(hello, size))).toEqual({ state: "complete", serverName: "web.test" });
  }
});

test("is incomplete while bytes are missing", () => {
  for (let length = 0; length < hello.length; length += 1) {
    expect(readHello(hello.subarray(0, length)).state).toBe("incomplete");
  }
});

test("rejects bytes that are not TLS at once", () => {
  for (const text of [
    "GET / HTTP/1.1\r\n",
    "SSH-2.0-x",
    "\x16\x02",
    "\x16\x03\x01\x00\x00",
    "\x16\x03\x01\xff\xff",
  ]) {
    expect([text, readHello(Buffer.from(text, "latin1")).state]).toEqual([text, "malformed"]);
  }
});

test("rejects a hello with two server names, because the destination could read the other name", () => {
  const twice = buildHello([
    [0, nameOf("web.test")],
    [0, nameOf("evil.test")],
  ]);
  expect(readHello(buildHello([[0, nameOf("web.test")]]))).toEqual({
    state: "complete",
    serverName: "web.test",
  });
  expect(readHello(twice).state).toBe("malformed");
  const list = Buffer.concat([nameOf("web.test").subarray(2), nameOf("evil.test").subarray(2)]);
  expect(readHello(buildHello([[0, Buffer.concat([Buffer.from([0, list.length]), list])]])).state).toBe(
    "malformed",
  );
  expect(readHello(buildHello([[0, nameOf("web.test", 1)]])).state).toBe("malformed");
});

test("never throws on random bytes, and never reads another name from a damaged hello", () => {
  fc.assert(
    fc.property(
      fc.uint8Array({ maxLength: 600 }),
      (bytes) => readHello(Buffer.from(bytes)).state !== undefined,
    ),
  );
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 600 }), (bytes) => {
      const framed = Buffer.concat([
        Buffer.from([22, 3, 1, bytes.length >> 8, bytes.length & 255, 1]),
        bytes,
      ]);
      return readHello(framed).state !== undefined;
    }),
  );
  fc.assert(
    fc.property(fc.nat(hello.length - 1), fc.nat(255), (at, value) => {
      const broken = Buffer.from(hello);
      broken[at] = value;
      return readHello(broken).state !== undefined;
    }),
  );
});
