import { expect, test } from "vitest";
import { readCounters, readRuleset } from "./listing.ts";
import { parseDefaultUplink, parseNameservers } from "./uplink.ts";

const listing = (...items: unknown[]) => JSON.stringify({ nftables: [{ metainfo: {} }, ...items] });

test("reads slots, modes and groups from the host's ruleset, and ignores other instances", () => {
  const set = (table: string, name: string, elem: unknown[]) => ({
    set: { family: "inet", table, name, elem },
  });
  const chain = (table: string, name: string) => ({ chain: { family: "netdev", table, name } });
  const text = listing(
    set("kontor61", "open", [{ concat: ["100.125.0.2", 4711] }]),
    set("kontor61", "restricted", ["100.125.0.1"]),
    set("kontor61", "members", [{ concat: ["100.125.0.3", 9] }]),
    set("kontor0", "members", [{ concat: ["100.64.0.3", 8] }]),
    set("kontor0", "restricted", ["100.64.0.9"]),
    chain("kontor61", "from_0"),
    chain("kontor61", "to_0"),
    chain("kontor61", "from_7"),
    chain("kontor0", "from_3"),
    chain("kontor0", "to_3"),
  );
  const { access, chained, marks } = readRuleset(61, text);
  expect(access).toEqual(
    new Map([
      [0, { mode: "restricted" }],
      [1, { mode: "open", tenancy: 4711 }],
    ] as never),
  );
  expect(chained).toEqual(new Set([0]));
  expect(marks).toEqual(new Map([[2, 9]]));
});

test("reads counters by slot, and an empty set as no elements", () => {
  const elem = [{ elem: { val: "100.125.0.1", counter: { packets: 6, bytes: 298 } } }];
  expect(readCounters(61, listing({ set: { name: "denied", elem } }))).toEqual(new Map([[0, 6]]));
  expect(readCounters(61, listing({ set: { name: "denied" } }))).toEqual(new Map());
});

test("chooses the default route's interface with the lowest metric as uplink", () => {
  const head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
  const route = (name: string, destination: string, metric: number, mask: string) =>
    `${name}\t${destination}\t010200C0\t0003\t0\t0\t${metric}\t${mask}\t0\t0\t0\n`;
  expect(
    parseDefaultUplink(
      head +
        route("wlan0", "00000000", 600, "00000000") +
        route("eth0", "00000000", 100, "00000000") +
        route("docker0", "000011AC", 0, "0000FFFF"),
    ),
  ).toBe("eth0");
  expect(parseDefaultUplink(head + route("*", "00000000", 0, "00000000"))).toBeNull();
  expect(parseDefaultUplink(head)).toBeNull();
});

test("reads resolvers from resolv.conf in order, without comments and options", () => {
  expect(
    parseNameservers(
      "# nameserver 9.9.9.9\nsearch lan\nnameserver 127.0.0.53\nnameserver  fe80::1%eth0 \noptions edns0\n",
    ),
  ).toEqual(["127.0.0.53", "fe80::1%eth0"]);
});
