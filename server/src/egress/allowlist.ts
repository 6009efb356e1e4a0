/**
 * Which hosts a machine may reach, by name. An entry is a host name, which means that host alone; `*.example.com`
 * means every name below example.com and not example.com itself; `example.com:8443` opens that port of it and no
 * other. Names are compared as DNS does: in lower case, without the dot at the end.
 */

/** What HTTPS and plain HTTP use unless an entry says otherwise. */
export const HTTPS_PORT = 443;
export const HTTP_PORT = 80;

export interface Entry {
  name: string;
  below: boolean;
  /** Null: 443 and 80. */
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

/** Entries that do not parse are passed over: they open nothing. */
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

/** The name at any port: for questions to the resolver, and to tell a wrong port from a wrong host. */
export function isKnown(entries: readonly Entry[], name: string): boolean {
  return entries.some((entry) => isNamed(entry, name));
}

function isNamed(entry: Entry, name: string): boolean {
  return entry.below ? name.endsWith(`.${entry.name}`) : name === entry.name;
}

/**
 * A host name in the one spelling everything is compared in; undefined for what is none. Nor is an address one, in any
 * spelling: a name's last label is never a number (RFC 3696 §2), while `127.1` and `0x7f000001` are what inet_aton(3)
 * takes for an address.
 */
export function parseHostName(text: string): string | undefined {
  const name = text.toLowerCase().replace(/\.$/, "");
  return name.length <= 253 && NAME.test(name) && !looksLikeAddress(name) ? name : undefined;
}

export function looksLikeAddress(host: string): boolean {
  const last = host.toLowerCase().replace(/\.$/, "").split(".").at(-1) ?? "";
  return host.includes(":") || host.startsWith("[") || /^(?:\d+|0x[0-9a-f]*)$/.test(last);
}

/** `host:port` as CONNECT and the Host header have it; `host` is as it was written. */
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
