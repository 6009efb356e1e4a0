/**
 * Resolves host names that callers chose: by `/etc/hosts` first, then by DNS with c-ares. `getaddrinfo` runs in two
 * threads of the process, so a few silent name servers would delay every look-up. c-ares uses sockets, and each owner
 * has a share of the look-ups. A look-up ends at its deadline, or when its signal aborts.
 */
import type { LookupAddress } from "node:dns";
import { Resolver } from "node:dns/promises";
import { readFile } from "node:fs/promises";
import { isIP } from "node:net";
import { FairSemaphore } from "../concurrency/fair-semaphore.ts";

const deadlineMs = 5_000;
/** Timeout of a query; a silent server is queried again, and then the host's next server. */
const queryTimeoutMs = 1_500;
const tries = 2;
/** Look-ups in flight: the limit for all owners, and for each owner. */
const limit = 256;
const perOwner = 16;
const maxWaiting = 1_000;

export interface NameResolverOptions {
  /** Name servers, with a port if it is not 53. Default: the host's own. */
  servers?: readonly string[];
  hostsFile?: string;
  resolvFile?: string;
}

export interface ResolveOptions {
  /** Workspace whose share of look-ups this look-up uses. */
  owner: string;
  signal?: AbortSignal | undefined;
}

export class NameResolver {
  readonly #servers: readonly string[] | undefined;
  readonly #hostsFile: string;
  readonly #resolvFile: string;
  readonly #slots = new FairSemaphore({
    limit,
    perOwner,
    queue: { max: maxWaiting, refuse: () => failure("EAGAIN", "too many look-ups are waiting") },
  });

  constructor(options: NameResolverOptions = {}) {
    this.#servers = options.servers;
    this.#hostsFile = options.hostsFile ?? "/etc/hosts";
    this.#resolvFile = options.resolvFile ?? "/etc/resolv.conf";
  }

  /** Returns all addresses of a name, IPv4 first, at least one. Errors have a `code`, such as `ENOTFOUND`. */
  async resolve(host: string, { owner, signal }: ResolveOptions): Promise<LookupAddress[]> {
    const family = isIP(host);
    if (family > 0) return [{ address: host, family }];
    const name = host.toLowerCase().replace(/\.$/, "");
    const known = await this.#inHostsFile(name);
    if (known.length > 0) return known;
    // `localhost` is never sent to DNS (RFC 6761, 6.3).
    if (name === "localhost" || name.endsWith(".localhost")) return addressesOf(["127.0.0.1", "::1"]);
    return this.#slots.run(owner, () => this.#byDns(name, signal), signal ? { signal } : {});
  }

  async #inHostsFile(name: string): Promise<LookupAddress[]> {
    const text = await readFile(this.#hostsFile, "utf8").catch(() => "");
    const found = text.split("\n").flatMap((line) => {
      const [address = "", ...names] = line.replace(/#.*/, "").trim().split(/\s+/);
      return names.some((one) => one.toLowerCase() === name) ? [address] : [];
    });
    return addressesOf(found);
  }

  async #byDns(name: string, signal: AbortSignal | undefined): Promise<LookupAddress[]> {
    const resolver = new Resolver({ timeout: queryTimeoutMs, tries });
    if (this.#servers) resolver.setServers(this.#servers);
    const cancel = () => resolver.cancel();
    const deadline = setTimeout(cancel, deadlineMs);
    signal?.addEventListener("abort", cancel, { once: true });
    try {
      for (const candidate of [...(await this.#searched(name)), name]) {
        signal?.throwIfAborted();
        const found = await query(resolver, candidate);
        if (found.length > 0) return found;
      }
    } finally {
      clearTimeout(deadline);
      signal?.removeEventListener("abort", cancel);
    }
    throw failure("ENOTFOUND", `${name} has no address`);
  }

  /** Returns a name of one label below each of the host's search domains. */
  async #searched(name: string): Promise<string[]> {
    if (name.includes(".")) return [];
    const text = await readFile(this.#resolvFile, "utf8").catch(() => "");
    const lines = [...text.matchAll(/^(?:search|domain)[ \t]+(.+)$/gm)];
    const domains = (lines.at(-1)?.[1] ?? "").trim().split(/\s+/);
    return domains.filter((domain) => domain !== "" && domain !== ".").map((domain) => `${name}.${domain}`);
  }
}

/** Returns an empty list if the name does not exist. Rejects if no server responded for either family. */
async function query(resolver: Resolver, name: string): Promise<LookupAddress[]> {
  const answers = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)]);
  const found = answers.flatMap((answer) => (answer.status === "fulfilled" ? answer.value : []));
  if (found.length > 0) return addressesOf(found);
  for (const answer of answers) {
    if (answer.status === "fulfilled") continue;
    const { code } = answer.reason as NodeJS.ErrnoException;
    if (code === "ENOTFOUND" || code === "ENODATA") continue;
    throw code === "ECANCELLED" ? failure("ETIMEOUT", `no name server responded for ${name}`) : answer.reason;
  }
  return [];
}

function addressesOf(found: readonly string[]): LookupAddress[] {
  const all = [...new Set(found)].map((address) => ({ address, family: isIP(address) }));
  return all.filter(({ family }) => family > 0).sort((a, b) => a.family - b.family);
}

function failure(code: string, message: string): Error {
  return Object.assign(new Error(message), { code });
}

/** The resolver with the host's own name servers. */
export const hostResolver = new NameResolver();
