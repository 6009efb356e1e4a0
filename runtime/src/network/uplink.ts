/** Finds the interface of the host's default route in the kernel's table. */
import { readFile } from "node:fs/promises";

/** Returns the interface of the IPv4 default route with the lowest metric. Null if there is no default route. */
export async function defaultUplink(): Promise<string | null> {
  return parseDefaultUplink(await readFile("/proc/net/route", "utf8"));
}

/**
 * Parses /proc/net/route (proc(5), net/ipv4/fib_trie.c). Columns: Iface Destination Gateway Flags RefCnt Use Metric
 * Mask …
 */
export function parseDefaultUplink(table: string): string | null {
  const routes = table
    .split("\n")
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((columns) => columns[1] === "00000000" && columns[7] === "00000000")
    .map((columns) => ({ name: columns[0] ?? "", metric: Number(columns[6]) }))
    // `*` stands for an unreachable route, which has no interface.
    .filter((route) => /^[\w.@:-]{1,15}$/.test(route.name));
  return routes.toSorted((a, b) => a.metric - b.metric)[0]?.name ?? null;
}

/** Returns the servers of a resolv.conf, in order (resolv.conf(5): at most three are used). */
export function parseNameservers(resolvConf: string): string[] {
  return [...resolvConf.matchAll(/^\s*nameserver\s+(\S+)/gm)].map((match) => match[1] ?? "").slice(0, 3);
}
