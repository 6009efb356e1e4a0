import { spawn } from "node:child_process";
import dgram from "node:dgram";
import { once } from "node:events";
import { existsSync } from "node:fs";
import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { run } from "../exec.ts";
import { instanceNames } from "./addresses.ts";
import { failure } from "./dns.ts";
import type { EgressServices } from "./egress.ts";
import { HostNetwork, type HostNetworkOptions } from "./network.ts";
import { probe, type ProbeAttempt } from "./testing/probe.ts";
import {
  DNS_ADDRESS,
  ECHO_PORT,
  HTTP_PORT,
  METADATA_ADDRESS,
  PRIVATE_ADDRESSES,
  startInternet,
  UPLINK_ADDRESS,
  UPLINK_ADDRESS_V6,
  WEB_ADDRESS,
  WEB_ADDRESS_V6,
  type Internet,
} from "./testing/internet.ts";

const INSTANCE = 60;
/** Instance of the second server. The driver's tests use 61 and 62. */
const OTHER_INSTANCE = 63;
const PROXY_PORT = 3128;
const HOST_SERVICE_PORT = 17_001;
const MACHINE_SERVICE_PORT = 8000;
const REFUSED = { refused: "ECONNREFUSED" };

let internet: Internet;
let network: HostNetwork;
let hostService: net.Server;
/**
 * A proxy of the host itself, on the port that machines use. Machines must reach the egress proxy instead, never this
 * proxy.
 */
let hostProxy: net.Server;
let a: { netnsPath: string; address: string };
let b: { netnsPath: string; address: string };
const cleanups: (() => unknown)[] = [];

const options = (more: Partial<HostNetworkOptions> = {}): HostNetworkOptions => ({
  instance: INSTANCE,
  uplink: internet.uplink,
  dnsServers: [DNS_ADDRESS],
  proxyPort: PROXY_PORT,
  machineIn: (slot) => `machine-${slot}`,
  ...more,
});

/** Serves restricted machines like the server's egress proxy, and records its input. */
class TestEgress implements EgressServices {
  readonly shutAddresses: string[] = [];
  denied = 0;
  ports = { proxyPort: 0, dnsPort: 0 };
  machineAt: (address: string) => string | undefined = () => undefined;
  #proxy: net.Server | undefined;
  #resolver: dgram.Socket | undefined;

  async open(address: string, machineAt: (address: string) => string | undefined) {
    this.machineAt = machineAt;
    this.#proxy = await serve(address, 0, "the egress proxy");
    const resolver = (this.#resolver = dgram.createSocket("udp4"));
    await new Promise<void>((resolve) => resolver.bind(0, address, resolve));
    resolver.on("message", (question, from) => {
      // "Refused", a regular DNS reply.
      resolver.send(failure(question).fill(0x85, 3, 4), from.port, from.address);
    });
    const { port: proxyPort } = this.#proxy.address() as net.AddressInfo;
    this.ports = { proxyPort, dnsPort: resolver.address().port };
    return this.ports;
  }
  closeConnections(address: string): void {
    this.shutAddresses.push(address);
  }
  deniedCount(): number {
    return this.denied;
  }
  async close(): Promise<void> {
    this.#proxy?.close();
    this.#resolver?.close();
  }
}
let egress: TestEgress;

async function serve(host: string, port: number, says = "a service of the host"): Promise<net.Server> {
  const server = net.createServer((socket) => socket.on("error", () => {}).end(says));
  server.listen(port, host);
  await once(server, "listening");
  return server;
}

/** Starts a TCP server inside a machine: a Node process, kept alive until the end of the test. */
async function serveInside(netnsPath: string): Promise<void> {
  const script = `require("net").createServer((s) => { s.on("error", () => {}); s.write("inside"); }).listen(${MACHINE_SERVICE_PORT}, () => console.log("ready"))`;
  const child = spawn("nsenter", [`--net=${netnsPath}`, process.execPath, "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  cleanups.push(async () => {
    const exited = once(child, "exit");
    child.kill("SIGKILL");
    await exited;
  });
  await once(child.stdout, "data");
}

beforeAll(async () => {
  internet = await startInternet();
  hostService = await serve("::", HOST_SERVICE_PORT);
  egress = new TestEgress();
  network = new HostNetwork(options({ egress }));
  await network.open();
  hostProxy = await serve(network.gateway, PROXY_PORT);
});

afterAll(async () => {
  hostService?.close();
  hostProxy?.close();
  await network?.close({ removeAll: true });
  await internet?.close();
});

beforeEach(async () => {
  a = await network.attach(0, "off");
  b = await network.attach(1, "off");
  await internet.forget();
});

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
  for (const slot of network.list()) await network.detach(slot);
});

/** Returns an attempt for every path out except the two that a mode opens. All of them are closed in every mode. */
function closedPaths(): ProbeAttempt[] {
  return [
    { kind: "tcp", host: b.address, port: MACHINE_SERVICE_PORT },
    { kind: "tcp", host: "10.0.0.1", port: HOST_SERVICE_PORT },
    { kind: "tcp", host: network.gateway, port: HOST_SERVICE_PORT },
    { kind: "tcp", host: UPLINK_ADDRESS, port: HOST_SERVICE_PORT },
    { kind: "tcp", host: METADATA_ADDRESS, port: HTTP_PORT },
    ...PRIVATE_ADDRESSES.map((host) => ({ kind: "tcp", host, port: HTTP_PORT }) as const),
    { kind: "udp", host: METADATA_ADDRESS, port: ECHO_PORT },
    { kind: "udp", host: "10.66.0.1", port: ECHO_PORT, bytes: 4000 },
    { kind: "icmp", host: METADATA_ADDRESS },
    { kind: "icmp", host: "10.0.0.1" },
  ];
}

/** Addresses of the internet, reachable in `open` only. */
const OUTSIDE: ProbeAttempt[] = [
  { kind: "tcp", host: WEB_ADDRESS, port: HTTP_PORT },
  { kind: "udp", host: WEB_ADDRESS, port: ECHO_PORT },
  { kind: "udp", host: WEB_ADDRESS, port: ECHO_PORT, bytes: 4000 },
  { kind: "udp", host: DNS_ADDRESS, port: 53 },
  { kind: "icmp", host: WEB_ADDRESS },
  { kind: "dns", server: "10.0.0.1", name: "secret-data.tunnel.test" },
];
const PROXY: ProbeAttempt = { kind: "tcp", host: "10.0.0.1", port: PROXY_PORT };

test("lets no packet out in mode off, on any path", async () => {
  await serveInside(b.netnsPath);
  const attempts = [...closedPaths(), ...OUTSIDE, PROXY];
  const results = await probe(a.netnsPath, attempts);
  expect(results.filter((result) => "answered" in result)).toEqual([]);
  expect(await internet.seen()).toEqual([]);
});

test("lets packets out to the proxy only in mode restricted", async () => {
  await serveInside(b.netnsPath);
  await network.setMode(0, "restricted");
  const results = await probe(a.netnsPath, [PROXY, ...closedPaths(), ...OUTSIDE]);
  expect(results[0]).toEqual({ answered: "the egress proxy" });
  expect(results.slice(1).filter((result) => "answered" in result)).toEqual([]);
  expect(await internet.seen()).toEqual([]);
});

test("serves the resolver of mode restricted over UDP, and hides the real ports of resolver and proxy", async () => {
  await network.setMode(0, "restricted");
  const { proxyPort, dnsPort } = egress.ports;
  const attempts: ProbeAttempt[] = [
    { kind: "dns", server: "10.0.0.1", name: "web.test" },
    { kind: "tcp", host: "10.0.0.1", port: 53 },
    { kind: "tcp", host: "10.0.0.1", port: proxyPort },
    { kind: "udp", host: "10.0.0.1", port: dnsPort },
  ];
  expect(await probe(a.netnsPath, attempts)).toEqual([{ refused: "EREFUSED" }, REFUSED, REFUSED, REFUSED]);
  expect(egress.machineAt(a.address)).toBe("machine-0");
  expect(egress.machineAt("198.51.100.1")).toBeUndefined();
});

test("drops a flood of connections before it reaches the proxy, and keeps other machines connected", async () => {
  await network.setMode(0, "restricted");
  await network.setMode(1, "restricted");
  const flood = await probe(
    a.netnsPath,
    Array.from({ length: 500 }, () => PROXY),
  );
  expect(flood.filter((result) => "answered" in result).length).toBeGreaterThanOrEqual(200);
  expect(flood).toContainEqual(REFUSED);
  expect(await probe(b.netnsPath, [PROXY])).toEqual([{ answered: "the egress proxy" }]);
  await expect.poll(() => probe(a.netnsPath, [PROXY])).toEqual([{ answered: "the egress proxy" }]);
});

test("notifies the proxy when a machine leaves mode restricted, and adds the proxy's refusals to the machine's count", async () => {
  await network.setMode(0, "restricted");
  egress.shutAddresses.splice(0);
  await network.setMode(1, "open");
  await network.setMode(1, "off");
  expect(egress.shutAddresses).toEqual([]);
  egress.denied = 5;
  cleanups.push(() => (egress.denied = 0));
  expect(await network.deniedCount(0)).toBe(5);
  await network.detach(0);
  expect(egress.shutAddresses).toEqual([a.address]);
});

test("reaches the internet and its names in mode open, but no hosts, machines, metadata or private ranges", async () => {
  await serveInside(b.netnsPath);
  await network.setMode(0, "open");
  const outside = await probe(a.netnsPath, OUTSIDE);
  expect(outside.map((result) => ("answered" in result ? result.answered.split("\r\n")[0] : result))).toEqual(
    ["HTTP/1.1 200 OK", "4 bytes", "4000 bytes", "4 bytes", "echo reply", WEB_ADDRESS],
  );
  const seen = await internet.seen();
  expect(new Set(seen.map(({ source }) => source))).toEqual(new Set([UPLINK_ADDRESS]));

  await internet.forget();
  const shut = await probe(a.netnsPath, [...closedPaths(), PROXY]);
  expect(shut.filter((result) => "answered" in result)).toEqual([]);
  expect(await internet.seen()).toEqual([]);
});

test("limits a machine's DNS questions in mode open, in the kernel", async () => {
  const listLimits = async (): Promise<string> =>
    (await run(["nft", "list", "set", "inet", instanceNames(INSTANCE).table, "open_questions"])).stdout;
  await network.setMode(0, "open");
  await network.setMode(1, "open");
  const question: ProbeAttempt = { kind: "dns", server: "10.0.0.1", name: "web.test" };
  expect(await probe(a.netnsPath, [question])).toEqual([{ answered: WEB_ADDRESS }]);
  expect(await listLimits()).toContain(`${a.address} limit rate over 500/second burst 1000 packets`);
  expect(await listLimits()).not.toContain(b.address);
});

test("resolves a name with a private address in mode open, and blocks the address (DNS rebinding)", async () => {
  await network.setMode(0, "open");
  const names = await probe(a.netnsPath, [
    { kind: "dns", server: "10.0.0.1", name: "metadata.test" },
    { kind: "dns", server: "10.0.0.1", name: "private.test" },
  ]);
  expect(names).toEqual([{ answered: METADATA_ADDRESS }, { answered: "10.66.0.1" }]);
  await internet.forget();
  const attempts = names.map(
    (name) => ({ kind: "tcp", host: Object.values(name)[0]!, port: HTTP_PORT }) as const,
  );
  expect(await probe(a.netnsPath, attempts)).toEqual([REFUSED, REFUSED]);
  expect(await internet.seen()).toEqual([]);
});

test("refuses a connection at once, also over UDP, so that programs inside do not wait for a timeout", async () => {
  const attempts: ProbeAttempt[] = [
    { kind: "tcp", host: WEB_ADDRESS, port: HTTP_PORT },
    { kind: "tcp", host: "10.0.0.1", port: PROXY_PORT },
    { kind: "udp", host: WEB_ADDRESS, port: ECHO_PORT },
    { kind: "udp", host: "10.0.0.1", port: 53 },
  ];
  // The kernel sends one address at most one ICMP refusal a second on average (icmp_ratelimit), and earlier
  // tests may have used up the burst.
  await sleep(2500);
  expect(await probe(a.netnsPath, attempts)).toEqual([REFUSED, REFUSED, REFUSED, REFUSED]);
});

test("drops every spoofed source address", async () => {
  await network.setMode(0, "open");
  await network.setMode(1, "open");
  const spoofed = [b.address, a.address, UPLINK_ADDRESS, "198.51.100.99"];
  const batch = spoofed.map((address) => `addr add ${address}/32 dev eth0\n`).join("");
  await run(["nsenter", `--net=${a.netnsPath}`, "ip", "-batch", "-"], { stdin: batch });
  const attempts = spoofed.flatMap((source): ProbeAttempt[] => [
    { kind: "tcp", host: WEB_ADDRESS, port: HTTP_PORT, source },
    { kind: "udp", host: WEB_ADDRESS, port: ECHO_PORT, source },
  ]);
  const results = await probe(a.netnsPath, attempts);
  expect(results).toEqual(attempts.map(() => ({ refused: "silence" })));
  expect(await internet.seen()).toEqual([]);
});

test("has no IPv6 in any mode, neither to the internet nor to the host", async () => {
  const batch = `addr add 2001:db8:99::2/64 dev eth0 nodad
neigh add 2001:db8:99::1 lladdr 02:00:0a:00:00:01 dev eth0
route add default via 2001:db8:99::1 dev eth0
`;
  await run(["nsenter", `--net=${a.netnsPath}`, "ip", "-6", "-batch", "-"], { stdin: batch });
  const attempts: ProbeAttempt[] = [
    { kind: "tcp", host: WEB_ADDRESS_V6, port: HTTP_PORT },
    { kind: "udp", host: WEB_ADDRESS_V6, port: ECHO_PORT },
    { kind: "tcp", host: UPLINK_ADDRESS_V6, port: HOST_SERVICE_PORT },
  ];
  for (const mode of ["off", "restricted", "open"] as const) {
    await network.setMode(0, mode);
    expect((await probe(a.netnsPath, attempts)).filter((result) => "answered" in result)).toEqual([]);
  }
  expect(await internet.seenV6()).toBe(0);
});

test("connects from the host to a port inside in every mode, and keeps a connection across a change of mode", async () => {
  await serveInside(a.netnsPath);
  const connect = async () => {
    const socket = net.connect(MACHINE_SERVICE_PORT, a.address);
    cleanups.push(() => socket.destroy());
    const [data] = (await once(socket, "data")) as [Buffer];
    return { socket, data: data.toString() };
  };
  const first = await connect();
  for (const mode of ["off", "restricted", "open", "off"] as const) {
    await network.setMode(0, mode);
    expect((await connect()).data).toBe("inside");
  }
  expect(first.socket.destroyed).toBe(false);
});

test("blocks connections from outside, though the host forwards packets for the machine", async () => {
  await serveInside(a.netnsPath);
  await network.setMode(0, "open");
  await run([
    "ip",
    "-n",
    internet.uplink,
    "route",
    "add",
    instanceNames(INSTANCE).range,
    "via",
    UPLINK_ADDRESS,
  ]);
  const attempts: ProbeAttempt[] = [
    { kind: "tcp", host: a.address, port: MACHINE_SERVICE_PORT },
    { kind: "tcp", host: network.gateway, port: PROXY_PORT },
  ];
  const results = await probe(internet.netnsPath, attempts);
  expect(results).toEqual([{ refused: "silence" }, { refused: "silence" }]);
});

test("ends the connections of a machine whose slot is shut, and does not revive them when the slot opens again", async () => {
  await network.setMode(0, "open");
  const script = `const s = require("net").connect(${ECHO_PORT}, "${WEB_ADDRESS}");
    s.on("data", (d) => console.log(String(d))); s.on("error", (e) => console.log(e.code)); s.on("connect", () => s.write("one"));
    process.stdin.on("data", (d) => s.write(d));`;
  const child = spawn("nsenter", [`--net=${a.netnsPath}`, process.execPath, "-e", script], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  cleanups.push(() => child.kill("SIGKILL"));
  const next = async () => String((await once(child.stdout, "data"))[0]).trim();
  expect(await next()).toBe("one");
  await network.setMode(0, "off");
  await network.setMode(0, "open");
  child.stdin.write("two");
  expect(await next()).toBe("ECONNRESET");
});

test("counts refusals for the machine that caused them, and restarts at zero for the next tenant", async () => {
  await probe(a.netnsPath, [{ kind: "tcp", host: METADATA_ADDRESS, port: HTTP_PORT }]);
  expect(await network.deniedCount(0)).toBe(1);
  expect(await network.deniedCount(1)).toBe(0);
  await network.detach(0);
  await network.attach(0, "off");
  expect(await network.deniedCount(0)).toBe(0);
});

test("finds slots and modes after a restart, keeps machines connected, and sweeps leftovers", async () => {
  await network.attach(2, "restricted");
  await network.setMode(0, "open");
  await network.close();
  network = new HostNetwork(options());
  await network.open();
  expect(network.list()).toEqual([0, 1, 2]);
  expect([0, 1, 2].map((slot) => network.mode(slot))).toEqual(["open", "off", "restricted"]);
  const attempts: ProbeAttempt[] = [{ kind: "dns", server: "10.0.0.1", name: "web.test" }, PROXY];
  expect(await probe(a.netnsPath, attempts)).toEqual([{ answered: WEB_ADDRESS }, REFUSED]);
  await network.sweep(new Set([0]));
  expect(network.list()).toEqual([0]);
  await network.setMode(0, "off");
  expect(await probe(a.netnsPath, attempts)).toEqual([REFUSED, REFUSED]);
});

test("removes an incomplete slot of a killed server at the next start", async () => {
  await network.close();
  await run(["ip", "link", "del", `kv${INSTANCE}-1`]);
  await run(["ip", "netns", "add", `kv${INSTANCE}-7`]);
  network = new HostNetwork(options());
  await network.open();
  expect(network.list()).toContain(0);
  expect(network.list()).not.toContain(1);
  expect(existsSync(`/run/netns/kv${INSTANCE}-1`)).toBe(false);
  expect(existsSync(`/run/netns/kv${INSTANCE}-7`)).toBe(false);
});

test("runs a second server on the host with its own tables and addresses", async () => {
  const other = new HostNetwork(options({ instance: OTHER_INSTANCE }));
  await other.open();
  cleanups.push(() => other.close({ removeAll: true }));
  const c = await other.attach(0, "open");
  await network.setMode(0, "open");
  await serveInside(a.netnsPath);
  const reach: ProbeAttempt = { kind: "tcp", host: WEB_ADDRESS, port: HTTP_PORT };
  const results = await probe(c.netnsPath, [
    reach,
    { kind: "tcp", host: a.address, port: MACHINE_SERVICE_PORT },
  ]);
  expect(results).toEqual([{ answered: expect.stringContaining("200 OK") as string }, REFUSED]);
  await other.close({ removeAll: true });
  cleanups.splice(0, 1);
  expect(await probe(a.netnsPath, [reach])).toEqual([
    { answered: expect.stringContaining("200 OK") as string },
  ]);
});

test("lets no packet out through an interface other than the configured uplink", async () => {
  await network.close();
  network = new HostNetwork(options({ uplink: "lo" }));
  await network.open();
  await network.setMode(0, "open");
  expect(await probe(a.netnsPath, [{ kind: "tcp", host: WEB_ADDRESS, port: HTTP_PORT }])).toEqual([REFUSED]);
  expect(await internet.seen()).toEqual([]);
  await network.close();
  network = new HostNetwork(options());
  await network.open();
});

test("starts and ends a burst of machines at once, and leaves no part of them", async () => {
  const slots = Array.from({ length: 30 }, (_, index) => 100 + index);
  await Promise.all(slots.map((slot) => network.attach(slot, "open")));
  expect(network.list().length).toBe(32);
  await Promise.all(slots.map((slot) => network.detach(slot)));
  await network.waitUntilIdle();
  const { stdout } = await run(["ip", "netns"]);
  const left = stdout.split("\n").filter((line) => line.startsWith(`kv${INSTANCE}-`));
  expect(network.list()).toEqual([0, 1]);
  expect(left.length).toBeLessThanOrEqual(18);
});

test("restores the rules after a restart of a firewall flushed them", async () => {
  await network.setMode(0, "open");
  const tables = `delete table inet kontor${INSTANCE}\ndelete table netdev kontor${INSTANCE}\n`;
  await run(["nft", "-f", "-"], { stdin: tables });
  await network.refresh();
  const attempts: ProbeAttempt[] = [
    { kind: "tcp", host: WEB_ADDRESS, port: HTTP_PORT },
    { kind: "dns", server: "10.0.0.1", name: "web.test" },
    { kind: "tcp", host: METADATA_ADDRESS, port: HTTP_PORT },
  ];
  expect(await probe(a.netnsPath, attempts)).toEqual([
    { answered: expect.stringContaining("200 OK") as string },
    { answered: WEB_ADDRESS },
    REFUSED,
  ]);
  expect(await probe(b.netnsPath, attempts.slice(0, 1))).toEqual([REFUSED]);
  await network.setMode(0, "off");
  expect(await probe(a.netnsPath, attempts.slice(0, 1))).toEqual([REFUSED]);
});

test("removes every table, namespace, interface and address of the instance", async () => {
  const gone = new HostNetwork(options({ instance: OTHER_INSTANCE }));
  await gone.open();
  cleanups.push(() => gone.close({ removeAll: true }));
  await gone.attach(0, "open");
  await gone.attach(1, "restricted");
  await gone.detach(1);
  await gone.close({ removeAll: true });
  cleanups.pop();
  expect((await run(["nft", "list", "tables"])).stdout).not.toContain(`kontor${OTHER_INSTANCE}`);
  expect((await run(["ip", "-br", "addr"])).stdout).not.toMatch(/kv63-|100\.127\./);
  expect((await run(["ip", "netns"])).stdout).not.toContain(`kv${OTHER_INSTANCE}-`);
});

test("rejects a slot in use, and a mode for an unknown slot", async () => {
  await expect(network.attach(0, "open")).rejects.toMatchObject({ kind: "already_exists" });
  expect(network.mode(0)).toBe("off");
  await expect(network.setMode(9, "open")).rejects.toMatchObject({ kind: "not_found" });
  await network.detach(9);
});
