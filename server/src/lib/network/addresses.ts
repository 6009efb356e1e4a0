/**
 * Decides which addresses this server may connect to on a caller's behalf: public internet addresses, and those that
 * the operator opened by name. The check always applies to the address of the connection, because a host name's owner
 * decides what it resolves to and when.
 *
 * The tables follow IANA's special-purpose registries. IPv6 counts as public only inside 2000::/3, the part that IANA
 * allocates. IPv6 addresses that embed an IPv4 address are refused entirely, because the connection would reach the
 * embedded address.
 */
import { BlockList, isIP, isIPv4 } from "node:net";
import { networkInterfaces } from "node:os";

/** Networks of IPv4 that are not public: iana.org/assignments/iana-ipv4-special-registry, and multicast. */
const special4 = [
  "0.0.0.0/8", // this host
  "10.0.0.0/8", // private
  "100.64.0.0/10", // carrier-grade NAT, and the outer addresses of our machines
  "127.0.0.0/8", // loopback
  "169.254.0.0/16", // link-local, and the metadata services of clouds
  "172.16.0.0/12", // private
  "192.0.0.0/24", // protocol assignments
  "192.0.2.0/24", // documentation
  "192.88.99.0/24", // 6to4 relays
  "192.168.0.0/16", // private
  "198.18.0.0/15", // benchmarks
  "198.51.100.0/24", // documentation
  "203.0.113.0/24", // documentation
  "224.0.0.0/4", // multicast
  "240.0.0.0/4", // reserved, and broadcast
];

/** Networks inside 2000::/3 that are not public: iana.org/assignments/iana-ipv6-special-registry. */
const special6 = [
  "2001::/23", // protocol assignments, Teredo among them
  "2001:db8::/32", // documentation
  "2002::/16", // 6to4: carries an IPv4 address
  "3fff::/20", // documentation
];

const special = blockList([...special4, ...special6]);
const assigned6 = blockList(["2000::/3"]);

/** False for text that is not an address. */
export function isPublicAddress(address: string): boolean {
  if (isIPv4(address)) return !special.check(address, "ipv4");
  return isIP(address) === 6 && assigned6.check(address, "ipv6") && !special.check(address, "ipv6");
}

/** Host names, addresses and CIDR ranges that the operator opened. */
export interface OpenedHosts {
  names: ReadonlySet<string>;
  ranges: BlockList;
}

/**
 * Accepts entries such as `forge.lan`, `192.168.1.7`, `10.1.0.0/16` and `fd00::/8`. Throws a RangeError that names a
 * malformed entry.
 */
export function parseOpenedHosts(entries: readonly string[]): OpenedHosts {
  const names = new Set<string>();
  const ranges: string[] = [];
  for (const entry of entries) {
    const [address = "", bits, ...rest] = entry.split("/");
    const size = isIPv4(address) ? 32 : 128;
    if (isIP(address) > 0 && rest.length === 0 && isPrefix(bits ?? String(size), size)) {
      ranges.push(`${address}/${bits ?? size}`);
    } else if (isHostName(entry)) {
      names.add(entry.toLowerCase());
    } else {
      throw new RangeError(`${entry} is not a host name, address or CIDR range`);
    }
  }
  return { names, ranges: blockList(ranges) };
}

/** True if a connection to `address` is allowed on a caller's behalf. `host` is the name that resolved to it. */
export function mayConnect(opened: OpenedHosts, host: string, address: string): boolean {
  const family = isIP(address);
  if (family === 0) return false;
  if (opened.names.has(host.toLowerCase().replace(/\.$/, ""))) return true;
  return isPublicAddress(address) || opened.ranges.check(address, family === 4 ? "ipv4" : "ipv6");
}

/**
 * Time for which the own addresses are cached. Listing the interfaces of a host with hundreds of machines takes
 * milliseconds, and the addresses seldom change.
 */
const ownAddressesKeptMs = 5_000;
let kept = { at: -Infinity, addresses: new Set<string>() };

/**
 * Returns the addresses of this host's interfaces. A connection from this process to such an address may bypass the
 * host's firewall.
 */
export function ownAddresses(): ReadonlySet<string> {
  if (performance.now() - kept.at > ownAddressesKeptMs) {
    const all = Object.values(networkInterfaces()).flatMap((entries) => entries ?? []);
    kept = { at: performance.now(), addresses: new Set(all.map(({ address }) => address)) };
  }
  return kept.addresses;
}

function isPrefix(text: string, size: number): boolean {
  return /^\d{1,3}$/.test(text) && Number(text) <= size;
}

/** Requires a letter in the last label: `10.0.0` and `1.2.3.4.5` are malformed addresses, not names. */
function isHostName(text: string): boolean {
  return /^(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*(?=[a-z0-9-]*[a-z])[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/i.test(
    text,
  );
}

function blockList(ranges: readonly string[]): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = "", bits] = range.split("/");
    list.addSubnet(address, Number(bits), isIPv4(address) ? "ipv4" : "ipv6");
  }
  return list;
}

/** True for loopback addresses and for `localhost`. */
export function isLoopback(host: string): boolean {
  return host === "localhost" || host === "::1" || (isIP(host) === 4 && host.startsWith("127."));
}

/** Parses `first-last`, both included and neither below 1024. Undefined for any other text. */
export function parsePorts(text: string): { first: number; last: number } | undefined {
  const [, first = 0, last = 0] = (/^(\d{1,5})-(\d{1,5})$/.exec(text) ?? []).map(Number);
  return first >= 1024 && first <= last && last <= 65_535 ? { first, last } : undefined;
}
