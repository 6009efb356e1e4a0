/** Determines the client's address. X-Forwarded-For is read only from trusted proxies, from right to left. */
import type { IncomingMessage } from "node:http";
import { isIP } from "node:net";
import { parseOpenedHosts } from "#lib/network/addresses.ts";

export type IsTrusted = (address: string) => boolean;

/** Compiles the setting `trusted_proxies`. */
export function trustedProxies(ranges: readonly string[]): IsTrusted {
  const { ranges: trusted } = parseOpenedHosts(ranges);
  return (address) => {
    const plain = withoutMapping(address);
    const family = isIP(plain);
    return family !== 0 && trusted.check(plain, family === 4 ? "ipv4" : "ipv6");
  };
}

/** Returns the rightmost address that is not a trusted proxy. Null if the connection is closed. */
export function clientAddress(
  { socket, headers }: Pick<IncomingMessage, "socket" | "headers">,
  isTrusted: IsTrusted,
): string | null {
  if (socket.remoteAddress === undefined) return null;
  let client = withoutMapping(socket.remoteAddress);
  const before = [headers["x-forwarded-for"] ?? []].flat().join(",").split(",");
  while (isTrusted(client)) {
    const next = withoutMapping(before.pop()?.trim() ?? "");
    // Without an address in the header, the proxy's own address counts.
    if (isIP(next) === 0) break;
    client = next;
  }
  return client;
}

const withoutMapping = (address: string): string => address.replace(/^::ffff:(?=\d+\.)/i, "");
