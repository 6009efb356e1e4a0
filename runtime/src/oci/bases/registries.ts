/**
 * Package registries and proxies of this host, as variables for the package clients of a build. Empty for default
 * registries, which every client knows. Credentials of npm's registry and of proxies are left out; credentials of
 * Python's indexes are kept (docs/decisions/0048).
 */
import { readFile } from "node:fs/promises";
import { BlockList, isIP } from "node:net";
import { run } from "../../exec.ts";
import { BUNDLE, certificates } from "../../rootfs/trust.ts";
import { pythonIndexesOf } from "./python-indexes.ts";

/** Package sources for the commands of builds. */
export interface PackageSources {
  env: Readonly<Record<string, string>>;
  /** Parts of the variables that are hidden in logs. */
  hidden: readonly string[];
  /**
   * PEM text of the certificates that commands trust, placed at `authoritiesPath`. Null: the commands trust the
   * certificates of the base.
   */
  authorities: string | null;
}

/** Package sources without configuration: every client uses its default registry. */
export const noSources: PackageSources = { env: {}, hidden: [], authorities: null };

/** Path of the certificates in a build. */
export const authoritiesPath = "/run/kontor-authorities.pem";
/**
 * Variables that make programs trust the certificates. Bases set variables for requests and OpenSSL, which override
 * pip's setting, and uv has no variable of its own.
 */
const trusting = {
  PIP_CERT: authoritiesPath,
  REQUESTS_CA_BUNDLE: authoritiesPath,
  SSL_CERT_FILE: authoritiesPath,
};

const npm = ["npm", "config", "get", "registry"];
/** Command that runs npm without any configuration. npm refuses one file for both options. */
const npmItself = [...npm, "--userconfig=/nonexistent/user", "--globalconfig=/nonexistent/global"];
/** Command of Debian's pip: the first pip on PATH may be a wrapper of a version manager. */
const pip = ["/usr/bin/python3", "-m", "pip", "config", "list"];
const ASK_MS = 10_000;
/** Variables of which curl, npm, pip, apt and git each read some, in both letter cases. */
const proxyNames = ["http_proxy", "https_proxy", "all_proxy"] as const;

export async function hostPackageSources(): Promise<PackageSources> {
  const bare = Object.entries(process.env).filter(([name]) => !/^npm_config_/i.test(name));
  const [forNpm, usual, forPip] = await Promise.all([
    ask(npm, process.env),
    ask(npmItself, Object.fromEntries(bare)),
    ask(pip, process.env),
  ]);
  const python = pythonIndexesOf(forPip, isElsewhere);
  const authorities =
    python.cert === null ? null : authoritiesOf(await textOf(python.cert), await textOf(BUNDLE));
  return {
    env: {
      ...npmRegistryOf(forNpm, usual),
      ...python.env,
      ...(authorities === null ? {} : trusting),
      ...proxiesOf(process.env),
    },
    hidden: python.hidden,
    authorities,
  };
}

async function ask(argv: readonly string[], env: NodeJS.ProcessEnv): Promise<string> {
  const asked = run(argv, { timeoutMs: ASK_MS, env, cwd: "/" }).catch(() => undefined);
  return (await asked)?.stdout ?? "";
}

function textOf(file: string): Promise<string> {
  return readFile(file, "utf8").catch(() => "");
}

/**
 * Returns the certificates that pip or this host trusts: both, because all programs of a build use them. Null if pip's
 * file has no certificates. Pure.
 */
export function authoritiesOf(pips: string, hosts: string): string | null {
  if (certificates(pips).length === 0) return null;
  return certificates(`${pips}\n${hosts}`)
    .map((certificate) => `${certificate}\n`)
    .join("");
}

/** Returns the configured registry: compares npm's output with its output without configuration. Pure. */
export function npmRegistryOf(printed: string, usual: string): Record<string, string> {
  const registry = printed.trim() === usual.trim() ? undefined : addressOf(printed.trim());
  return registry === undefined ? {} : { npm_config_registry: registry };
}

/**
 * Returns the proxies of an environment, without proxies that a build's network cannot reach: this host, private
 * ranges. Pure.
 */
export function proxiesOf(env: NodeJS.ProcessEnv): Record<string, string> {
  const of = (name: string) => env[name] ?? env[name.toUpperCase()];
  const found = proxyNames.flatMap((name): [string, string][] => {
    const address = addressOf(of(name));
    return address !== undefined && isElsewhere(new URL(address).hostname) ? [[name, address]] : [];
  });
  if (found.length === 0) return {};
  const without = of("no_proxy");
  const all = [...found, ...(without ? [["no_proxy", without] as const] : [])];
  return Object.fromEntries(
    all.flatMap(([name, value]) => [
      [name, value],
      [name.toUpperCase(), value],
    ]),
  );
}

const unreachable = new BlockList();
for (const [net, bits] of [
  ["0.0.0.0", 8],
  ["10.0.0.0", 8],
  ["100.64.0.0", 10],
  ["127.0.0.0", 8],
  ["169.254.0.0", 16],
  ["172.16.0.0", 12],
  ["192.168.0.0", 16],
] as const)
  unreachable.addSubnet(net, bits);

/** Returns whether the host is reachable from a build. Slots have no IPv6. */
function isElsewhere(host: string): boolean {
  if (host.startsWith("[") || /(?:^|\.)localhost$/.test(host)) return false;
  return isIP(host) === 0 || !unreachable.check(host);
}

function addressOf(value: string | undefined): string | undefined {
  const address = URL.parse(value ?? "");
  if (!address || !/^https?:$/.test(address.protocol)) return undefined;
  address.username = "";
  address.password = "";
  return address.href;
}
