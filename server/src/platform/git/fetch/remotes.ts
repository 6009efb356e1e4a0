/**
 * Addresses of remote repositories: a project's own, and those of its submodules. An address is parsed and rebuilt from
 * its validated parts. So no part of it becomes an option, another transport or a program.
 */
import { posix } from "node:path";

export interface HttpRemote {
  kind: "https" | "http";
  host: string;
  /** Address in the form that git gets. */
  address: string;
  origin: string;
}

export interface SshRemote {
  kind: "ssh";
  host: string;
  /** Port of the ssh server; null means 22. */
  port: number | null;
  address: string;
}

export type Remote = HttpRemote | SshRemote;

const maxLength = 2000;

/**
 * Parses an address. Returns undefined for other schemes than https, http and ssh, and for an address with a password.
 */
export function parseRemote(text: string): Remote | undefined {
  if (text.length > maxLength || !/^[\u0021-\u007e]+$/.test(text)) return undefined;
  if (/^https?:\/\//i.test(text)) return parseHttp(text);
  if (/^ssh:\/\//i.test(text)) return parseSsh(text);
  return parseShort(text);
}

/**
 * Resolves the address of a submodule: an absolute one, or one that begins with `./` or `../`. Returns undefined if the
 * result leads above the host, or is not a supported address.
 */
export function resolveRemote(base: Remote | null, text: string): Remote | undefined {
  if (!/^\.\.?(?:\/|$)/.test(text)) return parseRemote(text);
  if (base === null || text.length > maxLength) return undefined;
  const [, front = "", path = ""] = /^(\w+:\/\/[^/]+|[^/:]+:|[^/]*\[[^\]]+\]:)(.*)$/.exec(base.address) ?? [];
  const joined = posix.join(path.replace(/\/+$/, ""), text);
  return joined === "" || /^(?:\/?\.\.(?:\/|$)|\.$)/.test(joined) ? undefined : parseRemote(front + joined);
}

function parseHttp(text: string): HttpRemote | undefined {
  const url = URL.parse(text);
  if (!url || url.hostname === "" || !isPlain(url) || url.username !== "") return undefined;
  const kind = url.protocol === "https:" ? "https" : "http";
  return { kind, host: bare(url.hostname), address: url.href, origin: url.origin };
}

function parseSsh(text: string): SshRemote | undefined {
  const url = URL.parse(text);
  if (!url || !isHost(url.hostname) || !isPlain(url)) return undefined;
  const user = url.username || "git";
  if (!isUser(user)) return undefined;
  const port = url.port === "" ? null : Number(url.port);
  const address = `ssh://${user}@${url.hostname}${port === null ? "" : `:${port}`}${url.pathname}`;
  return { kind: "ssh", host: bare(url.hostname), port, address };
}

/** Parses `user@host:path`, the form that forges show. The path is relative to the user's home. */
function parseShort(text: string): SshRemote | undefined {
  const [, user = "git", host, path] =
    /^(?:([^@:/[\]]+)@)?((?:\[[0-9a-fA-F:.]+\])|[^@:/[\]]+):([^:].*)$/.exec(text) ?? [];
  if (host === undefined || path === undefined || path.startsWith("-")) return undefined;
  if (!isHost(host) || !isUser(user) || path.startsWith("//")) return undefined;
  return { kind: "ssh", host: bare(host), port: null, address: `${user}@${host}:${path}` };
}

function isPlain(url: URL): boolean {
  return url.password === "" && url.search === "" && url.hash === "" && url.pathname.length > 1;
}

const isHost = (text: string): boolean =>
  /^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])$/.test(text);
const isUser = (text: string): boolean => /^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$/.test(text);
const bare = (host: string): string => host.replace(/^\[|\]$/g, "").toLowerCase();
