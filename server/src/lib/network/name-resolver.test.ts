import dgram from "node:dgram";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { parseOpenedHosts } from "./addresses.ts";
import { checkedLookup } from "./checked-lookup.ts";
import { NameResolver } from "./name-resolver.ts";

const address = "192.0.2.7";
/** Names that were queried. Queries below `silent.test` get no response. */
const questions = new Set<string>();

/** A name server on loopback (RFC 1035, 4) with an A record for each name, and no records of other types. */
const server = dgram.createSocket("udp4");
server.on("message", (query, from) => {
  const end = query.indexOf(0, 12);
  const labels: string[] = [];
  for (let at = 12; at < end; at += query[at]! + 1)
    labels.push(query.toString("latin1", at + 1, at + 1 + query[at]!));
  const name = labels.join(".").toLowerCase();
  questions.add(name);
  if (name.endsWith("silent.test")) return;
  const isKnown = !name.startsWith("none.");
  const isA = query.readUInt16BE(end + 1) === 1 && isKnown;
  const header = Buffer.from([0, 0, 0x81, isKnown ? 0x80 : 0x83, 0, 1, 0, isA ? 1 : 0, 0, 0, 0, 0]);
  query.copy(header, 0, 0, 2);
  const record = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ...address.split(".").map(Number)]);
  const question = query.subarray(12, end + 5);
  server.send(Buffer.concat([header, question, ...(isA ? [record] : [])]), from.port, from.address);
});
server.bind(0, "127.0.0.1");
await once(server, "listening");
afterAll(() => void server.close());

const directory = await mkdtemp(join(tmpdir(), "kontor-names-"));
afterAll(() => rm(directory, { recursive: true, force: true }));
const hostsFile = join(directory, "hosts");
await writeFile(hostsFile, "10.1.2.3 Forge.lan forge # of the LAN\nfd00::3 forge.lan\n");
const resolvFile = join(directory, "resolv.conf");
await writeFile(resolvFile, "search first.test second.test\n");
const resolver = new NameResolver({
  servers: [`127.0.0.1:${server.address().port}`],
  hostsFile,
  resolvFile,
});

test("resolves an owner's name while another owner's look-ups exhaust its share without a response", async () => {
  const leave = new AbortController();
  const names = Array.from({ length: 40 }, (_, n) => `n${n}.silent.test`);
  const slow = names.map((name) => resolver.resolve(name, { owner: "a", signal: leave.signal }));
  const settled = Promise.allSettled(slow);
  let isSettled = false;
  void settled.then(() => (isSettled = true));
  const countAsked = () => names.filter((name) => questions.has(name)).length;
  await expect.poll(countAsked, { timeout: 20_000 }).toBeGreaterThanOrEqual(16);
  expect(await resolver.resolve("fast.test", { owner: "b" })).toEqual([{ address, family: 4 }]);
  expect(isSettled).toBe(false);
  expect(countAsked()).toBeLessThan(names.length);
  leave.abort(new Error("left"));
  expect(new Set((await settled).map(({ status }) => status))).toEqual(new Set(["rejected"]));
});

test("rejects a name when no server responds", async () => {
  await expect(resolver.resolve("late.silent.test", { owner: "a" })).rejects.toMatchObject({
    code: "ETIMEOUT",
  });
});

test("resolves names of the hosts file, addresses and localhost without a DNS query", async () => {
  const resolve = (host: string) => resolver.resolve(host, { owner: "a" });
  expect(await resolve("FORGE.lan.")).toEqual([
    { address: "10.1.2.3", family: 4 },
    { address: "fd00::3", family: 6 },
  ]);
  expect(await resolve("fd00::7")).toEqual([{ address: "fd00::7", family: 6 }]);
  for (const host of ["localhost", "a.localhost"])
    expect(await resolve(host)).toEqual([
      { address: "127.0.0.1", family: 4 },
      { address: "::1", family: 6 },
    ]);
  for (const host of ["forge.lan", "localhost", "a.localhost"]) expect(questions).not.toContain(host);
});

test("resolves a name of one label below the host's search domains", async () => {
  expect(await resolver.resolve("db", { owner: "a" })).toEqual([{ address, family: 4 }]);
  expect(questions).toContain("db.first.test");
  await expect(resolver.resolve("none.first.test", { owner: "a" })).rejects.toMatchObject({
    code: "ENOTFOUND",
  });
});

test("refuses a checked look-up when any of its addresses is private", async () => {
  const lookUp = (opened: string[], host: string) =>
    new Promise((resolve, reject) => {
      const lookup = checkedLookup(parseOpenedHosts(opened), "a", resolver);
      lookup(host, { all: true }, (error, found) => (error ? reject(error) : resolve(found)));
    });
  await expect(lookUp([], "localhost")).rejects.toThrow("private or internal");
  await expect(lookUp(["10.0.0.0/8"], "forge.lan")).rejects.toThrow("private or internal");
  expect(await lookUp(["forge.lan"], "forge.lan")).toHaveLength(2);
});
