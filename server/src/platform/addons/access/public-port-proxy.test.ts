import { once } from "node:events";
import { webcrypto } from "node:crypto";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { connect as connectTls, createSecureContext } from "node:tls";
import { PemConverter, X509CertificateGenerator } from "@peculiar/x509";
import { afterAll, expect, test } from "vitest";
import { silentLog, testConfig } from "../../../../test/harness.ts";
import { freePort } from "#platform/apps/testing/apps-host.ts";
import { PublicPortProxy } from "./public-port-proxy.ts";
import type { Kind } from "../engines/engine.ts";

/** Sends back all input, and ends a connection when its client does. */
const database = createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket)).listen(
  0,
  "127.0.0.1",
);
await once(database, "listening");
afterAll(() => database.close());
const open = new Set<PublicPortProxy>();
afterAll(() => open.forEach((publicPorts) => publicPorts.close()));

async function publicPort(kind: Kind, addonsHost = "127.0.0.1") {
  const publicPorts = new PublicPortProxy({ config: { ...testConfig(), addonsHost }, log: silentLog });
  open.add(publicPorts);
  const port = await freePort();
  const { port: inner } = database.address() as AddressInfo;
  publicPorts.set("one", { kind, port, connect: async () => connect(inner, "127.0.0.1") });
  return { publicPorts, port };
}

async function client(port: number): Promise<Socket> {
  for (;;) {
    const socket = connect(port, "127.0.0.1");
    const event = await Promise.race([once(socket, "connect"), once(socket, "error")]);
    if (event.length === 0) return socket.on("error", () => {});
  }
}

async function certificate() {
  const algorithm = { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" };
  const keys = await webcrypto.subtle.generateKey(algorithm, true, ["sign", "verify"]);
  const made = await X509CertificateGenerator.createSelfSigned({
    name: "CN=localhost",
    keys,
    signingAlgorithm: algorithm,
  });
  const key = PemConverter.encode(await webcrypto.subtle.exportKey("pkcs8", keys.privateKey), "PRIVATE KEY");
  return createSecureContext({ key, cert: made.toString("pem") });
}

const sslRequest = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47]);

test("forwards bytes in both directions until each side ends its own", async () => {
  const { port } = await publicPort("redis");
  const socket = await client(port);
  const large = "x".repeat(4 * 1024 ** 2);
  socket.end(large);
  expect((await text(socket)).length).toBe(large.length);
});

test("ends the connections of a port when the port is closed, and refuses new ones", async () => {
  const { publicPorts, port } = await publicPort("redis");
  const socket = await client(port);
  socket.write("hello");
  await once(socket, "data");
  publicPorts.set("one", undefined);
  await once(socket, "close");
  const refused = connect(port, "127.0.0.1");
  expect(((await once(refused, "error")) as [NodeJS.ErrnoException])[0].code).toBe("ECONNREFUSED");
});

test("accepts a burst of connections, and delays further ones", async () => {
  const { port } = await publicPort("redis");
  const sockets = await Promise.all(Array.from({ length: 80 }, () => client(port)));
  const answers = await Promise.all(
    sockets.map(async (socket) => {
      socket.end("hello");
      return text(socket).catch(() => "");
    }),
  );
  const served = answers.filter((answer) => answer === "hello").length;
  expect(served).toBeGreaterThanOrEqual(50);
  expect(served).toBeLessThan(80);
});

test("ends a client's connection while the database is down", async () => {
  const publicPorts = new PublicPortProxy({ config: testConfig(), log: silentLog });
  open.add(publicPorts);
  const port = await freePort();
  publicPorts.set("one", { kind: "redis", port, connect: () => Promise.reject(new Error("down")) });
  const socket = await client(port);
  await once(socket, "close");
});

// A loopback address in a form that the setting does not recognise.
const elsewhere = "::ffff:127.0.0.1";

test("requires TLS for PostgreSQL beyond loopback, and sends a plain client the reason", async () => {
  const { publicPorts, port } = await publicPort("postgres", elsewhere);
  const context = await certificate();
  publicPorts.useCertificates(async () => context);
  const plain = await client(port);
  plain.write(Buffer.from([0, 0, 0, 9, 0, 3, 0, 0, 0]));
  expect(await text(plain)).toMatch(/^E.*FATAL.*requires TLS/s);

  const socket = await client(port);
  socket.write(Buffer.from([0, 0, 0, 8, 4, 210, 22, 48]));
  expect(String((await once(socket, "data"))[0])).toBe("N");
  socket.write(sslRequest);
  expect(String((await once(socket, "data"))[0])).toBe("S");
  const secure = connectTls({ socket, rejectUnauthorized: false });
  secure.end("hello");
  expect(await text(secure)).toBe("hello");
});

test("ends the connection if plain bytes follow the request for TLS", async () => {
  const { publicPorts, port } = await publicPort("postgres", elsewhere);
  const context = await certificate();
  publicPorts.useCertificates(async () => context);
  const socket = await client(port);
  socket.write(Buffer.concat([sslRequest, Buffer.from("more")]));
  expect(await text(socket).catch(() => "")).toBe("");
});

test("starts TLS at the first byte for Redis beyond loopback, and refuses connections without a certificate", async () => {
  const { publicPorts, port } = await publicPort("redis", elsewhere);
  const without = await client(port);
  without.write("PING\r\n");
  await once(without, "close");
  const context = await certificate();
  publicPorts.useCertificates(async () => context);
  const secure = connectTls({ port, host: "127.0.0.1", rejectUnauthorized: false });
  secure.end("hello");
  expect(await text(secure)).toBe("hello");
});
