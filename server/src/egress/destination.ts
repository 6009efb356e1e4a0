/**
 * From a name to an address that may be connected to. The allowlist is asked first, then the resolver once, then every
 * address it gave is judged; the connection goes to an address judged here and is never resolved again, so a name that
 * changes its mind (DNS rebinding) changes nothing.
 */
import { Resolver } from "node:dns/promises";
import net from "node:net";
import { isPublicAddress, type OpenedHosts, ownAddresses, parseOpenedHosts } from "#lib/addresses.ts";
import { type Entry, isAllowed, isKnown, looksLikeAddress, parseHostName } from "./allowlist.ts";
import { Denial } from "./denials.ts";

/** A name that is allowed, and where it may be connected to. */
export interface Destination {
  name: string;
  port: number;
  addresses: readonly string[];
}

/**
 * TEST-NET-2 and 3 lead nowhere on the internet, and networks that put a mirror in front of package archives give it an
 * address of those; the machines' own rules leave them out for the same reason.
 */
const MIRRORS = parseOpenedHosts(["198.51.100.0/24", "203.0.113.0/24"]).ranges;

const RESOLVE_TIMEOUT_MS = 2_000;
const RESOLVE_TRIES = 2;
const CONNECT_TIMEOUT_MS = 10_000;

/** The name and port a machine asked for, where its allowlist has them; else the reason why not. */
export function judgeName(allowed: readonly Entry[], host: string, port: number): string {
  if (looksLikeAddress(host)) throw new Denial("address", host);
  const name = parseHostName(host);
  if (name === undefined || !isKnown(allowed, name)) throw new Denial("not_allowed", host);
  if (!isAllowed(allowed, name, port)) throw new Denial("wrong_port", `${name}:${port}`);
  return name;
}

/** Resolves allowed names for machines. */
export class Names {
  readonly #servers: readonly string[] | null;
  readonly #opened: OpenedHosts;

  /** `servers`: resolvers; null: the host's own. `privateHosts`: names, addresses and ranges an operator opened. */
  constructor(options: { servers: readonly string[] | null; privateHosts: readonly string[] }) {
    this.#servers = options.servers;
    this.#opened = parseOpenedHosts(options.privateHosts);
  }

  /** IPv4 addresses of the name, all of them fit to connect to; a Denial where one is not. */
  async resolve(name: string): Promise<string[]> {
    const addresses = await this.#ask(name);
    if (addresses.length === 0) throw new Denial("no_such_name", name);
    const own = ownAddresses();
    const isOpened = (address: string) =>
      this.#opened.names.has(name) || this.#opened.ranges.check(address, "ipv4");
    const isOutside = (address: string) => isPublicAddress(address) || MIRRORS.check(address, "ipv4");
    const isFit = (address: string) => isOpened(address) || (isOutside(address) && !own.has(address));
    if (!addresses.every(isFit)) throw new Denial("private_address", name);
    return addresses;
  }

  async #ask(name: string): Promise<string[]> {
    // One for each name: it reads the host's resolvers as they are now, and a slow one holds up nobody else.
    const resolver = new Resolver({ timeout: RESOLVE_TIMEOUT_MS, tries: RESOLVE_TRIES });
    if (this.#servers !== null) resolver.setServers(this.#servers);
    try {
      // A question for this very name: neither the host's search domains nor its /etc/hosts have a say.
      return await resolver.resolve4(name);
    } catch {
      return [];
    }
  }
}

/** Connects to the first address that answers. The caller has the socket; errors after that are its own to hear. */
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
