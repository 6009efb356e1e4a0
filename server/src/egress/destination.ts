/**
 * Resolves a host name to an address that a machine may connect to. The allowlist is checked first, then a single
 * look-up follows, then every address is checked. The connection goes to a checked address without another look-up, so
 * a changed DNS record (DNS rebinding) has no effect.
 */
import { Resolver } from "node:dns/promises";
import net from "node:net";
import { isPublicAddress, type OpenedHosts, ownAddresses, parseOpenedHosts } from "#lib/network/addresses.ts";
import { type Entry, isAllowed, isKnown, looksLikeAddress, parseHostName } from "./allowlist.ts";
import { Denial } from "./denials.ts";

/** An allowed name, and the addresses for connections to it. */
export interface Destination {
  name: string;
  port: number;
  addresses: readonly string[];
}

/**
 * TEST-NET-2 and TEST-NET-3 are not routed on the internet. Networks with a mirror of package archives give the mirror
 * such an address. The rules of the machines permit these networks for the same reason.
 */
const MIRRORS = parseOpenedHosts(["198.51.100.0/24", "203.0.113.0/24"]).ranges;

const RESOLVE_TIMEOUT_MS = 2_000;
const RESOLVE_TRIES = 2;
const CONNECT_TIMEOUT_MS = 10_000;

/** Returns the name if the allowlist has it with this port. Throws the reason otherwise. */
export function requireAllowedName(allowed: readonly Entry[], host: string, port: number): string {
  if (looksLikeAddress(host)) throw new Denial("address", host);
  const name = parseHostName(host);
  if (name === undefined || !isKnown(allowed, name)) throw new Denial("not_allowed", host);
  if (!isAllowed(allowed, name, port)) throw new Denial("wrong_port", `${name}:${port}`);
  return name;
}

/** Resolves allowed names for machines. */
export class AllowedNameResolver {
  readonly #servers: readonly string[] | null;
  readonly #opened: OpenedHosts;

  /**
   * `servers`: resolvers, or null for the host's own. `privateHosts`: names, addresses and ranges that the operator
   * opened.
   */
  constructor(options: { servers: readonly string[] | null; privateHosts: readonly string[] }) {
    this.#servers = options.servers;
    this.#opened = parseOpenedHosts(options.privateHosts);
  }

  /** Returns the name's IPv4 addresses. Throws a Denial if connections to any of them are forbidden. */
  async resolve(name: string): Promise<string[]> {
    const addresses = await this.#query(name);
    if (addresses.length === 0) throw new Denial("no_such_name", name);
    const own = ownAddresses();
    const isOpened = (address: string) =>
      this.#opened.names.has(name) || this.#opened.ranges.check(address, "ipv4");
    const isOutside = (address: string) => isPublicAddress(address) || MIRRORS.check(address, "ipv4");
    const isFit = (address: string) => isOpened(address) || (isOutside(address) && !own.has(address));
    if (!addresses.every(isFit)) throw new Denial("private_address", name);
    return addresses;
  }

  async #query(name: string): Promise<string[]> {
    // A resolver per name reads the host's current resolvers, and a slow look-up delays no other.
    const resolver = new Resolver({ timeout: RESOLVE_TIMEOUT_MS, tries: RESOLVE_TRIES });
    if (this.#servers !== null) resolver.setServers(this.#servers);
    try {
      // Queries exactly this name: neither the host's search domains nor its /etc/hosts apply.
      return await resolver.resolve4(name);
    } catch {
      return [];
    }
  }
}

/** Connects to the first address that accepts. The caller owns the socket and handles its later errors. */
export async function dial({ name, port, addresses }: Destination, signal: AbortSignal): Promise<net.Socket> {
  for (const address of addresses.slice(0, 3)) {
    const socket = await tryDial(address, port, signal);
    if (socket !== undefined) return socket;
  }
  throw new Denial("unreachable", `${name}:${port}`);
}

function tryDial(host: string, port: number, signal: AbortSignal): Promise<net.Socket | undefined> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve(undefined);
    const socket = net.connect({ host, port, family: 4, allowHalfOpen: true, noDelay: true });
    const finish = (reached: boolean) => {
      clearTimeout(deadline);
      signal.removeEventListener("abort", giveUp);
      if (!reached) socket.destroy();
      resolve(reached ? socket : undefined);
    };
    const giveUp = () => finish(false);
    const deadline = setTimeout(giveUp, CONNECT_TIMEOUT_MS);
    signal.addEventListener("abort", giveUp, { once: true });
    socket.on("error", giveUp);
    socket.once("connect", () => finish(true));
  });
}
