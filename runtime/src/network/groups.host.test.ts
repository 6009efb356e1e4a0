import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { run } from "../exec.ts";
import { serviceAddress, slotNames } from "./addresses.ts";
import type { Member } from "./groups.ts";
import { HostNetwork, type HostNetworkOptions } from "./network.ts";
import { connectIn, type NamespaceProgram, runIn, serveIn } from "./testing/namespace-programs.ts";
import {
  DNS_ADDRESS,
  ECHO_PORT,
  HTTP_PORT,
  startInternet,
  WEB_ADDRESS,
  type Internet,
} from "./testing/internet.ts";
import { probe, type ProbeAttempt } from "./testing/probe.ts";

const INSTANCE = 60;
const PORT = 5432;
const OTHER_PORT = 6379;
const SERVICE = { name: "db.shop.internal", address: serviceAddress(0), ports: [PORT] };
const NOT_SERVED = serviceAddress(9);
const REFUSED = { refused: "ECONNREFUSED" };
const UNKNOWN = { refused: "ENOTFOUND" };
const SEES = (slot: number) => `db sees ${addressOf(slot)}`;
const addressOf = (slot: number) => slotNames(INSTANCE, slot).address;
const netnsOf = (slot: number) => slotNames(INSTANCE, slot).netnsPath;

let internet: Internet;
let network: HostNetwork;
const cleanups: (() => unknown)[] = [];
const options = (): HostNetworkOptions => ({
  instance: INSTANCE,
  uplink: internet.uplink,
  dnsServers: [DNS_ADDRESS],
  proxyPort: 3128,
});

/** Slots of the tests: the server, and its possible clients. */
const DB = 0;
const MATE = 1;
const STRANGER = 2;
const LONER = 3;

const tcp = (host: string, port = PORT): ProbeAttempt => ({ kind: "tcp", host, port });
const name = (of = SERVICE.name): ProbeAttempt => ({ kind: "dns", server: "10.0.0.1", name: of });
const tryAll = async (slot: number, attempts: ProbeAttempt[]) => probe(netnsOf(slot), attempts);

async function keepUntilEnd(inside: NamespaceProgram | Promise<NamespaceProgram>): Promise<NamespaceProgram> {
  const it = await inside;
  cleanups.push(() => it.end());
  return it;
}
const serve = (slot: number, says = "db", ...ports: number[]) =>
  keepUntilEnd(serveIn(netnsOf(slot), says, ...(ports.length === 0 ? [PORT, OTHER_PORT] : ports)));
const connect = (slot: number, host = SERVICE.address) => keepUntilEnd(connectIn(netnsOf(slot), host, PORT));

/**
 * Counts the TCP packets that a namespace has received since the first call, without resets. Resets come from the host,
 * also for connections of an earlier tenant.
 */
async function countArrivals(slot: number): Promise<number> {
  const inside = ["nsenter", `--net=${netnsOf(slot)}`, "nft"];
  const stdin = `table ip seen {
	counter heard { }
	chain arriving { type filter hook prerouting priority -450; policy accept; }
}
flush chain ip seen arriving
add rule ip seen arriving tcp flags & rst == 0 counter name heard
`;
  await run([...inside, "-f", "-"], { stdin });
  const { stdout } = await run([...inside, "-j", "list", "counter", "ip", "seen", "heard"]);
  const items = (JSON.parse(stdout) as { nftables: { counter?: { packets: number } }[] }).nftables;
  return items.find(({ counter }) => counter !== undefined)?.counter?.packets ?? 0;
}

beforeAll(async () => {
  internet = await startInternet();
  network = new HostNetwork(options());
  await network.open();
});

afterAll(async () => {
  await network?.close({ removeAll: true });
  await internet?.close();
});

beforeEach(async () => {
  await network.attach(DB, "off", "acme");
  await network.attach(MATE, "open", "acme");
  await network.attach(STRANGER, "open", "globex");
  await network.attach(LONER, "open");
  await network.serve(DB, SERVICE);
  await internet.forget();
});

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
  for (const slot of network.list()) await network.detach(slot);
});

test("connects a machine to a service of its group, by name and by address, with its own source address", async () => {
  await serve(DB);
  expect(await tryAll(MATE, [name(), tcp(SERVICE.address)])).toEqual([
    { answered: SERVICE.address },
    { answered: SEES(MATE) },
  ]);
  // The server sees the host's address of a client.
  expect(await tryAll(MATE, [name("DB.Shop.INTERNAL")])).toEqual([{ answered: SERVICE.address }]);
});

test("blocks other ports and protocols, and the machine's own address, of a machine with a service", async () => {
  await serve(DB);
  const attempts: ProbeAttempt[] = [
    tcp(SERVICE.address, OTHER_PORT),
    tcp(addressOf(DB)),
    tcp(addressOf(DB), OTHER_PORT),
    tcp(NOT_SERVED),
    { kind: "udp", host: SERVICE.address, port: PORT },
  ];
  expect(await tryAll(MATE, attempts)).toEqual([REFUSED, REFUSED, REFUSED, REFUSED, REFUSED]);
  expect(await tryAll(MATE, [{ kind: "icmp", host: SERVICE.address }])).toEqual([
    { refused: "EHOSTUNREACH" },
  ]);
});

test("blocks a machine of another group or without a group on every path, and hides the service's name from it", async () => {
  await serve(DB);
  const before = await countArrivals(DB);
  for (const slot of [STRANGER, LONER]) {
    expect(await tryAll(slot, [tcp(SERVICE.address), tcp(addressOf(DB)), name()])).toEqual([
      REFUSED,
      REFUSED,
      UNKNOWN,
    ]);
    await network.setMode(slot, "off");
    expect(await tryAll(slot, [tcp(SERVICE.address), tcp(addressOf(DB))])).toEqual([REFUSED, REFUSED]);
  }
  expect(await countArrivals(DB)).toBe(before);
});

test("keeps two groups with one address and one name apart", async () => {
  await serve(DB, "acme's");
  await network.attach(4, "off", "globex");
  await network.serve(4, SERVICE);
  await serve(4, "globex's");
  expect(await tryAll(MATE, [tcp(SERVICE.address)])).toEqual([
    { answered: `acme's sees ${addressOf(MATE)}` },
  ]);
  expect(await tryAll(STRANGER, [tcp(SERVICE.address), name()])).toEqual([
    { answered: `globex's sees ${addressOf(STRANGER)}` },
    { answered: SERVICE.address },
  ]);
});

test("blocks connections from a server to its clients, also along existing ones", async () => {
  await serve(MATE, "mate");
  await serve(DB);
  const held = await connect(MATE);
  expect(await held.next()).toBe(SEES(MATE));
  expect(await tryAll(DB, [tcp(addressOf(MATE)), tcp(SERVICE.address, OTHER_PORT)])).toEqual([
    REFUSED,
    REFUSED,
  ]);
});

test("allows only the group's services and names in mode off, and no other packet", async () => {
  await serve(DB);
  await network.setMode(MATE, "off");
  expect(await tryAll(MATE, [name(), tcp(SERVICE.address)])).toEqual([
    { answered: SERVICE.address },
    { answered: SEES(MATE) },
  ]);
  const attempts: ProbeAttempt[] = [
    name("web.test"),
    tcp(WEB_ADDRESS, HTTP_PORT),
    { kind: "udp", host: WEB_ADDRESS, port: ECHO_PORT },
    { kind: "udp", host: DNS_ADDRESS, port: 53 },
  ];
  expect((await tryAll(MATE, attempts)).filter((result) => "answered" in result)).toEqual([]);
  expect((await tryAll(MATE, [name("web.test")]))[0]).toEqual({ refused: "EREFUSED" });
  expect(await internet.seen()).toEqual([]);
});

test("never forwards a name below .internal to an outside resolver", async () => {
  for (const slot of [MATE, STRANGER, LONER]) {
    expect(await tryAll(slot, [name("nobody.shop.internal"), name("internal")])).toEqual([UNKNOWN, UNKNOWN]);
  }
  expect(await internet.seen()).toEqual([]);
});

test("reaches the addresses of the group's services in mode restricted", async () => {
  await serve(DB);
  await network.setMode(MATE, "restricted");
  expect(await tryAll(MATE, [tcp(SERVICE.address), tcp(WEB_ADDRESS, HTTP_PORT)])).toEqual([
    { answered: SEES(MATE) },
    REFUSED,
  ]);
});

test("keeps a connection within the group across a change of mode", async () => {
  await serve(DB);
  const held = await connect(MATE);
  await held.next();
  for (const mode of ["off", "restricted", "open"] as const) {
    await network.setMode(MATE, mode);
    held.send(mode);
    expect(await held.next()).toBe(mode);
  }
});

test("blocks a spoofed source, even the address of an allowed machine", async () => {
  await serve(DB);
  const stdin = `addr add ${addressOf(MATE)}/32 dev eth0\n`;
  await run(["nsenter", `--net=${netnsOf(STRANGER)}`, "ip", "-batch", "-"], { stdin });
  const before = await countArrivals(DB);
  expect(
    await tryAll(STRANGER, [{ ...tcp(SERVICE.address), source: addressOf(MATE) } as ProbeAttempt]),
  ).toEqual([{ refused: "silence" }]);
  expect(await countArrivals(DB)).toBe(before);
});

test("refuses connections to an address without a server at once, still resolves its name, and then connects to the next server", async () => {
  await serve(DB);
  const held = await connect(MATE);
  await held.next();
  await network.detach(DB);
  expect(await tryAll(MATE, [tcp(SERVICE.address), name()])).toEqual([
    REFUSED,
    { answered: SERVICE.address },
  ]);
  held.send("to whom?");
  expect(await held.next()).toBe("ECONNRESET");
  await network.attach(4, "off", "acme");
  await serve(4, "next");
  expect(await tryAll(MATE, [tcp(SERVICE.address)])).toEqual([REFUSED]);
  await network.serve(4, SERVICE);
  expect(await tryAll(MATE, [tcp(SERVICE.address)])).toEqual([{ answered: `next sees ${addressOf(MATE)}` }]);
});

test("moves a service to the machine that serves it last, and ignores the end of the earlier machine", async () => {
  await serve(DB);
  await network.attach(4, "off", "acme");
  await serve(4, "next");
  await network.serve(4, { ...SERVICE, ports: [PORT, OTHER_PORT] });
  await network.withdraw(DB);
  await network.detach(DB);
  expect(await tryAll(MATE, [tcp(SERVICE.address), tcp(SERVICE.address, OTHER_PORT), name()])).toEqual([
    { answered: `next sees ${addressOf(MATE)}` },
    { answered: `next sees ${addressOf(MATE)}` },
    { answered: SERVICE.address },
  ]);
});

test("withdraws the services of a machine that ended, and the old name of an address with a new name", async () => {
  await serve(DB);
  await network.withdraw(DB);
  expect(await tryAll(MATE, [tcp(SERVICE.address), name()])).toEqual([
    REFUSED,
    { answered: SERVICE.address },
  ]);
  await network.serve(DB, { ...SERVICE, name: "other.shop.internal" });
  expect(await tryAll(MATE, [name(), name("other.shop.internal")])).toEqual([
    UNKNOWN,
    { answered: SERVICE.address },
  ]);
});

/** Ends the machine without a shutdown, and gives its slot to a machine of `group`. */
async function reuse(slot: number, inside: NamespaceProgram, group: string | undefined): Promise<void> {
  await run(["nsenter", `--net=${netnsOf(slot)}`, "ip", "link", "set", "eth0", "down"]);
  await inside.end();
  await network.detach(slot);
  await network.attach(slot, "open", group);
}

test.each([
  ["another group", "globex"],
  ["no group", undefined],
])(
  "sends no packet of a client's old connection to the next tenant of its slot: %s",
  async (_title, group) => {
    const db = await serve(DB);
    const held = await connect(MATE);
    await held.next();
    await reuse(MATE, held, group);
    const before = await countArrivals(MATE);
    db.send("the balance is");
    expect(await db.next()).toBe("ECONNRESET");
    expect(await countArrivals(MATE)).toBe(before);
  },
);

test("sends no packet of a server's old connection to the next tenant of its slot, in another group", async () => {
  const db = await serve(DB);
  const held = await connect(MATE);
  await held.next();
  await reuse(DB, db, "globex");
  await serve(DB, "another tenant");
  const before = await countArrivals(DB);
  held.send("the password is");
  expect(await held.next()).toBe("ECONNRESET");
  expect(await countArrivals(DB)).toBe(before);
  expect(await tryAll(MATE, [tcp(SERVICE.address)])).toEqual([REFUSED]);
});

test("restores groups and services after a restart: connections continue, new connections open, names resolve", async () => {
  await serve(DB);
  const held = await connect(MATE);
  await held.next();
  await network.close();
  held.send("while there is no server");
  expect(await held.next()).toBe("while there is no server");
  const members: Member[] = [
    { slot: DB, privateNetwork: { group: "acme", serves: SERVICE } },
    { slot: MATE, privateNetwork: { group: "acme" } },
    { slot: STRANGER, privateNetwork: { group: "globex" } },
    // A restart of the host removed the namespace of this slot.
    {
      slot: 7,
      privateNetwork: { group: "acme", serves: { ...SERVICE, address: NOT_SERVED, name: "gone.internal" } },
    },
  ];
  network = new HostNetwork(options());
  await network.open(members);
  held.send("and after");
  expect(await held.next()).toBe("and after");
  expect(await tryAll(MATE, [tcp(SERVICE.address), name()])).toEqual([
    { answered: SEES(MATE) },
    { answered: SERVICE.address },
  ]);
  expect(await tryAll(STRANGER, [tcp(SERVICE.address), name()])).toEqual([REFUSED, UNKNOWN]);
  await network.detach(7);
  expect(await tryAll(MATE, [tcp(NOT_SERVED)])).toEqual([REFUSED]);
});

test("delays the resolution of names during a restart, and never reports them as unknown or refused", async () => {
  const script = `const dns = require("dns").promises; const resolver = new dns.Resolver({ timeout: 20, tries: 1 });
    resolver.setServers(["10.0.0.1"]);
    const heard = new Set();
    const ask = async (name) => {
      const said = await resolver.resolve4(name).then(String, (error) => error.code);
      if (heard.size < heard.add(said).size) console.log(said);
      return ask(name);
    };
    ask("${SERVICE.name}"); ask("web.test");
    process.stdin.on("data", () => { heard.clear(); console.log("anew"); });`;
  const asker = await keepUntilEnd(runIn(netnsOf(MATE), script));
  const heard = new Set<string>();
  const listen = async () => {
    for (const said of (await asker.next()).split("\n")) heard.add(said);
    return heard;
  };
  const known = new Set([SERVICE.address, WEB_ADDRESS]);
  await expect.poll(listen).toEqual(known);
  const members: Member[] = [
    { slot: DB, privateNetwork: { group: "acme", serves: SERVICE } },
    { slot: MATE, privateNetwork: { group: "acme" } },
  ];
  for (let restart = 0; restart < 3; restart += 1) {
    await network.close();
    network = new HostNetwork(options());
    await network.open(members);
  }
  asker.send("what now?");
  await expect.poll(async () => (await listen()).has("anew")).toBe(true);
  for (const harmless of ["ETIMEOUT", "ECONNREFUSED", "anew"]) heard.delete(harmless);
  expect(heard).toEqual(known);
});

test("puts a machine without a record into no group at a start of the network", async () => {
  await serve(DB);
  await network.close();
  network = new HostNetwork(options());
  await network.open([{ slot: DB, privateNetwork: { group: "acme", serves: SERVICE } }]);
  expect(await tryAll(MATE, [tcp(SERVICE.address), name()])).toEqual([REFUSED, UNKNOWN]);
});

test("restores the rules and groups after a restart of a firewall flushed them", async () => {
  await serve(DB);
  const held = await connect(MATE);
  await held.next();
  const tables = `delete table inet kontor${INSTANCE}\ndelete table netdev kontor${INSTANCE}\n`;
  await run(["nft", "-f", "-"], { stdin: tables });
  await network.refresh();
  held.send("still there");
  expect(await held.next()).toBe("still there");
  expect(await tryAll(MATE, [tcp(SERVICE.address)])).toEqual([{ answered: SEES(MATE) }]);
  expect(await tryAll(STRANGER, [tcp(SERVICE.address)])).toEqual([REFUSED]);
});

test("applies the intended state at the next change after the kernel refused a change", async () => {
  await serve(DB);
  await network.attach(4, "off", "acme");
  await serve(4, "next");
  await run(["nft", "delete", "table", "inet", `kontor${INSTANCE}`]);
  await expect(network.serve(4, SERVICE)).rejects.toThrow("nft exited");
  await network.refresh();
  expect(await tryAll(MATE, [tcp(SERVICE.address)])).toEqual([{ answered: `next sees ${addressOf(MATE)}` }]);
});

test("moves 64 MB through the kernel while no server runs", async () => {
  await serve(DB);
  await network.close();
  try {
    const script = `const s = require("net").connect(${PORT}, "${SERVICE.address}");
      const total = 64 * 1024 * 1024; let left = total + "${SEES(MATE)}".length;
      s.on("data", (d) => { left -= d.length; if (left === 0) { console.log("whole"); process.exit(); } });
      s.on("connect", () => { for (let sent = 0; sent < total; sent += 1 << 20) s.write(Buffer.alloc(1 << 20, "x")); });`;
    const argv = ["nsenter", `--net=${netnsOf(MATE)}`, process.execPath, "-e", script];
    expect((await run(argv, { timeoutMs: 60_000 })).stdout).toBe("whole\n");
  } finally {
    network = new HostNetwork(options());
    await network.open();
  }
});

test("starts and ends thirty machines of one group at once, and leaves no element in the sets", async () => {
  const slots = Array.from({ length: 30 }, (_, index) => 100 + index);
  await Promise.all(slots.map((slot) => network.attach(slot, "off", "acme")));
  await Promise.all(
    slots.map((slot) =>
      network.serve(slot, { name: `s${slot}.internal`, address: serviceAddress(slot), ports: [PORT] }),
    ),
  );
  await Promise.all([...slots, DB, MATE, STRANGER].map((slot) => network.detach(slot)));
  for (const set of ["set members", "set askers", "set served", "map groups", "map services"]) {
    const { stdout } = await run(["nft", "list", ...set.replace(" ", ` inet kontor${INSTANCE} `).split(" ")]);
    expect(stdout).not.toContain("elements");
  }
});
