/**
 * Resolves a host that a caller chose, and checks every address before a connection. The caller connects to a returned
 * address, so a name that resolves to something else a moment later gains nothing.
 */
import { isIPv4 } from "node:net";
import { mayConnect, type OpenedHosts, ownAddresses } from "./addresses.ts";
import { hostResolver } from "./name-resolver.ts";

/**
 * Returns the addresses of `host`. Throws an Error with the reason if any address is forbidden. `own` holds this
 * server's public addresses: a connection from here could bypass the firewall in front of their services.
 */
export async function allowedAddresses(
  opened: OpenedHosts,
  host: string,
  options: { owner: string; onlyOpened?: boolean; own?: ReadonlySet<string> },
): Promise<string[]> {
  const { owner, onlyOpened = false, own = ownAddresses() } = options;
  const found = await hostResolver.resolve(host, { owner }).catch(() => []);
  const addresses = found.map(({ address }) => address);
  if (addresses.length === 0) throw new Error(`${host} has no address.`);
  if (!addresses.every((address) => mayConnect(opened, host, address))) {
    throw new Error(`${host} resolves to a private or internal address.`);
  }
  const isOpened = (address: string) =>
    opened.names.has(host.toLowerCase()) || opened.ranges.check(address, isIPv4(address) ? "ipv4" : "ipv6");
  if (addresses.some((address) => own.has(address) && !isOpened(address))) {
    throw new Error(`${host} resolves to an address of this server.`);
  }
  if (onlyOpened && !addresses.every(isOpened)) throw new Error(`${host} may be fetched from by https only.`);
  return addresses;
}
