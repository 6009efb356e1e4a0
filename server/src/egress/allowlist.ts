/**
 * The allowlist of host names that a machine may reach. A host name as entry matches that host alone. `*.example.com`
 * matches every name below example.com, but not example.com itself. `example.com:8443` opens only that port. Names are
 * compared as in DNS: in lower case, without the final dot.
 */

/** Default ports of HTTPS and plain HTTP, which an entry without a port opens. */
const HTTPS_PORT = 443;
export const HTTP_PORT = 80;

export interface Entry {
  name: string;
  below: boolean;
  /** Port that the entry opens. Null opens 443 and 80. */
  port: number | null;
}

const LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?";
const NAME = new RegExp(`^${LABEL}(?:\\.${LABEL})*$`);

export function parseEntry(text: string): Entry | undefined {
  const [, wildcard, rest = "", port] = /^(\*\.)?([^:]*)(?::(\d{1,5}))?$/.exec(text.trim()) ?? [];
  const name = parseHostName(rest);
  if (name === undefined || (port !== undefined && !isPort(Number(port)))) return undefined;
  return { name, below: wildcard !== undefined, port: port === undefined ? null : Number(port) };
}

/** Skips malformed entries, so that they open nothing. */
export function parseEntries(texts: readonly string[]): Entry[] {
  return texts.flatMap((text) => parseEntry(text) ?? []);
}

export function isAllowed(entries: readonly Entry[], name: string, port: number): boolean {
  return entries.some(
    (entry) =>
      isNamed(entry, name) &&
      (entry.port === null ? port === HTTPS_PORT || port === HTTP_PORT : port === entry.port),
  );
}

/** True if the name is allowed at some port: for DNS queries, and to distinguish a wrong port from a wrong host. */
export function isKnown(entries: readonly Entry[], name: string): boolean {
  return entries.some((entry) => isNamed(entry, name));
}

function isNamed(entry: Entry, name: string): boolean {
  return entry.below ? name.endsWith(`.${entry.name}`) : name === entry.name;
}

/**
 * Returns a host name in the spelling that is compared. Undefined for any other text. An address in any spelling is not
 * a host name, because a name's last label is never a number (RFC 3696 §2). `127.1` and `0x7f000001` are addresses for
 * inet_aton(3).
 */
export function parseHostName(text: string): string | undefined {
  const name = text.toLowerCase().replace(/\.$/, "");
  return name.length <= 253 && NAME.test(name) && !looksLikeAddress(name) ? name : undefined;
}

export function looksLikeAddress(host: string): boolean {
  const last = host.toLowerCase().replace(/\.$/, "").split(".").at(-1) ?? "";
  return host.includes(":") || host.startsWith("[") || /^(?:\d+|0x[0-9a-f]*)$/.test(last);
}

/** Parses `host:port` as in CONNECT and the Host header. `host` keeps its spelling. */
export function parseAuthority(
  text: string,
  defaultPort?: number,
): { host: string; port: number } | undefined {
  const [, host, digits] = /^(\[[0-9a-f:.%]*\]|[^:@/?#\\\s[\]]+)(?::(\d{1,5}))?$/i.exec(text) ?? [];
  const port = digits === undefined ? defaultPort : Number(digits);
  return host !== undefined && port !== undefined && isPort(port) ? { host, port } : undefined;
}

function isPort(port: number): boolean {
  return port >= 1 && port <= 65_535;
}
