/**
 * Where nobody is led to by a name: addresses that are not of the public internet. One table for both families, after
 * IANA's special-purpose registries (RFC 6890). TEST-NET-2 and 3 lead nowhere on the internet and are left out, as in
 * the machines' own rules: networks that put a mirror in front of package archives give it an address of those.
 */
import { BlockList, isIP } from "node:net";
import { networkInterfaces } from "node:os";

const REFUSED: readonly (readonly [network: string, prefixLength: number, why: string])[] = [
  ["0.0.0.0", 8, "this host"],
  ["10.0.0.0", 8, "private"],
  ["100.64.0.0", 10, "shared (carrier NAT), and other machines"],
  ["127.0.0.0", 8, "loopback"],
  ["169.254.0.0", 16, "link-local, and clouds' metadata services"],
  ["172.16.0.0", 12, "private"],
  ["192.0.0.0", 24, "protocol assignments"],
  ["192.0.2.0", 24, "documentation"],
  ["192.88.99.0", 24, "6to4 relays"],
  ["192.168.0.0", 16, "private"],
  ["198.18.0.0", 15, "benchmarks"],
  ["224.0.0.0", 3, "multicast, reserved and broadcast"],
  ["::", 96, "unspecified, loopback and IPv4-compatible"],
  ["64:ff9b:1::", 48, "local translation"],
  ["100::", 64, "discard"],
  ["2001::", 23, "protocol assignments, Teredo among them"],
  ["2001:db8::", 32, "documentation"],
  ["2002::", 16, "6to4"],
  ["3fff::", 20, "documentation"],
  ["5f00::", 16, "segment routing"],
  ["fc00::", 7, "private"],
  ["fe80::", 9, "link-local and site-local"],
  ["ff00::", 8, "multicast"],
];

/** An address with an IPv4 one in its last 32 bits is judged by that one: mapped (RFC 4291), NAT64 (RFC 6052). */
const CARRIERS: readonly string[] = ["::ffff:0:0", "64:ff9b::"];

const refused = new BlockList();
for (const [network, prefixLength] of REFUSED) {
  refused.addSubnet(network, prefixLength, familyOf(network));
}
const carriers = new BlockList();
for (const network of CARRIERS) carriers.addSubnet(network, 96, "ipv6");

/** True for an address of the public internet; false for every other and for what is no address. */
export function isPublicAddress(address: string): boolean {
  if (isIP(address) === 0) return false;
  if (isIP(address) === 4) return !refused.check(address, "ipv4");
  if (address.includes("%")) return false;
  return carriers.check(address, "ipv6")
    ? isPublicAddress(lastFour(address))
    : !refused.check(address, "ipv6");
}

/** Addresses and ranges that a setting opens (`10.1.0.0/16`, `192.168.1.5`); what is neither is passed over. */
export function rangesOf(entries: readonly string[]): BlockList {
  const ranges = new BlockList();
  for (const entry of entries) {
    const range = parseRange(entry);
    if (range) ranges.addSubnet(range.network, range.prefixLength, familyOf(range.network));
  }
  return ranges;
}

export function parseRange(entry: string): { network: string; prefixLength: number } | undefined {
  const [network = "", length, ...rest] = entry.split("/");
  const bits = { 4: 32, 6: 128 }[isIP(network)];
  if (bits === undefined || rest.length > 0 || network.includes("%")) return undefined;
  const prefixLength = length === undefined ? bits : /^\d{1,3}$/.test(length) ? Number(length) : -1;
  return prefixLength >= 0 && prefixLength <= bits ? { network, prefixLength } : undefined;
}

export function isWithin(ranges: BlockList, address: string): boolean {
  return isIP(address) !== 0 && ranges.check(address, familyOf(address));
}

/** Listing the interfaces of a host with hundreds of machines takes milliseconds; its own addresses seldom change. */
const OWN_ADDRESSES_MS = 5_000;
let own = { at: -Infinity, addresses: new Set<string>() };

/** What this host itself is reached by: a public address of its own leads to its own services all the same. */
export function ownAddresses(): ReadonlySet<string> {
  if (performance.now() - own.at > OWN_ADDRESSES_MS) {
    const all = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
    own = { at: performance.now(), addresses: new Set(all.map(({ address }) => address)) };
  }
  return own.addresses;
}

function familyOf(address: string): "ipv4" | "ipv6" {
  return isIP(address) === 6 ? "ipv6" : "ipv4";
}

/** The IPv4 address at the end of an IPv6 one, however that is written. */
function lastFour(address: string): string {
  const dotted = /(?:^|:)(\d+\.\d+\.\d+\.\d+)$/.exec(address)?.[1];
  if (dotted !== undefined) return dotted;
  const [high = "", low = ""] = new URL(`http://[${address}]/`).hostname.slice(1, -1).split(":").slice(-2);
  const words = [high, low].map((word) => Number.parseInt(word || "0", 16));
  return words.flatMap((word) => [word >> 8, word & 255]).join(".");
}
