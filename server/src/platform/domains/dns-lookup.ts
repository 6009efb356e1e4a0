/**
 * Looks up a custom name in DNS. The name is ours if its CNAME record, directly or through others, names the project's
 * generated host. An apex name can have no CNAME record (RFC 1034, section 3.6.2), but an ALIAS of its provider or A
 * records with our addresses. All projects have the same addresses, so a TXT record names the project.
 */
import { Resolver } from "node:dns/promises";

export type Finding =
  | { is: "ours" }
  /** The name leads to another server. `error` names the record to set. */
  | { is: "elsewhere"; error: string }
  /** No DNS server responded, so the name's state is unknown. */
  | { is: "unknown"; error: string };

const timeoutMs = 2_000;
const tries = 2;
const maxHops = 8;
/**
 * Deadline for all queries of a name, in milliseconds. Eight CNAME records over slow servers would take half a minute.
 */
const deadlineMs = 10_000;

/**
 * Returns the state of a name. Names are in lower case and without a final dot. The argument `servers` lists resolvers,
 * with a port if it is not 53; null selects the host's own.
 */
export async function lookUp(
  { hostname, target }: { hostname: string; target: string },
  servers: readonly string[] | null,
  withinMs: number = deadlineMs,
): Promise<Finding> {
  const resolver = new Resolver({ timeout: timeoutMs, tries });
  if (servers !== null) resolver.setServers(servers);
  const late = Promise.withResolvers<never>();
  const timer = setTimeout(() => {
    resolver.cancel();
    late.reject(new Late());
  }, withinMs);
  const found = find(resolver, hostname, target);
  // The deadline cancels the last query. A handler is needed for its rejection.
  found.catch(() => {});
  try {
    return await Promise.race([found, late.promise]);
  } catch (error) {
    if (error instanceof Late) {
      const seconds = `${withinMs / 1000} s`;
      return {
        is: "unknown",
        error: `The DNS servers for ${hostname} did not respond within ${seconds}. Check that they work, then verify again.`,
      };
    }
    const { code } = error as NodeJS.ErrnoException;
    return {
      is: "unknown",
      error: `The DNS servers did not respond for ${hostname} (${code ?? "unknown"}).`,
    };
  } finally {
    clearTimeout(timer);
  }
}

class Late extends Error {}

async function find(resolver: Resolver, hostname: string, target: string): Promise<Finding> {
  const aliases = await aliasesOf(resolver, hostname);
  if (aliases.includes(target)) return { is: "ours" };
  const set = `Set a CNAME record for ${hostname} to ${target}.`;
  if (aliases.length > 0) return elsewhere(`${hostname} is an alias of ${aliases[0]}. ${set}`);
  const theirs = await addressesOf(resolver, hostname);
  if (theirs.length === 0) return elsewhere(`There is no record for ${hostname}. ${set}`);
  const ours = new Set(await addressesOf(resolver, target));
  const apex = `If the name can have no CNAME, set an ALIAS (ANAME) record to ${target} and a TXT record _kontor.${hostname} with the text ${target}.`;
  if (!theirs.every((address) => ours.has(address))) {
    return elsewhere(`${hostname} leads to ${theirs.slice(0, 3).join(", ")}. ${set} ${apex}`);
  }
  const texts = await records(() => resolver.resolveTxt(`_kontor.${hostname}`));
  if (texts.some((pieces) => plain(pieces.join("")) === target)) return { is: "ours" };
  return elsewhere(
    `${hostname} leads here, but no record names the project. Set a TXT record _kontor.${hostname} with the text ${target}, or a CNAME record to ${target}.`,
  );
}

async function aliasesOf(resolver: Resolver, hostname: string): Promise<string[]> {
  const seen: string[] = [];
  let name = hostname;
  while (seen.length < maxHops) {
    const [next] = await records(() => resolver.resolveCname(name));
    if (next === undefined || seen.includes(plain(next))) break;
    name = plain(next);
    seen.push(name);
  }
  return seen;
}

async function addressesOf(resolver: Resolver, hostname: string): Promise<string[]> {
  const [four, six] = await Promise.all([
    records(() => resolver.resolve4(hostname)),
    records(() => resolver.resolve6(hostname)),
  ]);
  return [...four, ...six];
}

/** Returns the records of a query. Empty if the name does not exist or has no record of the type. */
async function records<T>(query: () => Promise<T[]>): Promise<T[]> {
  try {
    return await query();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOTFOUND" || code === "ENODATA") return [];
    throw error;
  }
}

function plain(name: string): string {
  return name.trim().toLowerCase().replace(/\.$/, "");
}

function elsewhere(error: string): Finding {
  return { is: "elsewhere", error };
}
