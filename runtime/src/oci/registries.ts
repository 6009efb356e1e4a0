/**
 * Where this host's own package clients get packages from, and by which proxy, as variables that the clients of a build
 * read. Nothing where they are as they came: every client knows its own registry. Credentials are left out; a build is
 * anybody's.
 */
import { BlockList, isIP } from "node:net";
import { run } from "../exec.ts";

const npm = ["npm", "config", "get", "registry"];
/** What npm says where nobody configured anything. */
const npmItself = [...npm, "--userconfig=/dev/null", "--globalconfig=/dev/null"];
/** Debian's own: what stands first on PATH may be a version manager's stand-in. */
const pip = ["/usr/bin/python3", "-m", "pip", "config", "list"];
const ASK_MS = 10_000;
/** What curl, npm, pip, apt and git each take a part of, in both cases. */
const proxyNames = ["http_proxy", "https_proxy", "all_proxy"] as const;

export async function hostRegistries(): Promise<Record<string, string>> {
  const bare = Object.entries(process.env).filter(([name]) => !/^npm_config_/i.test(name));
  const [forNpm, usual, forPip] = await Promise.all([
    ask(npm, process.env),
    ask(npmItself, Object.fromEntries(bare)),
    ask(pip, process.env),
  ]);
  return { ...registriesOf(forNpm, usual, forPip), ...proxiesOf(process.env) };
}

async function ask(argv: readonly string[], env: NodeJS.ProcessEnv): Promise<string> {
  const asked = run(argv, { timeoutMs: ASK_MS, env, cwd: "/" }).catch(() => undefined);
  return (await asked)?.stdout ?? "";
}

/** Of what the clients print. Pure. */
export function registriesOf(npm: string, npmItself: string, pip: string): Record<string, string> {
  const registry = npm.trim() === npmItself.trim() ? undefined : addressOf(npm.trim());
  const index = addressOf(/^(?:global|:env:)\.index-url='(.*)'$/m.exec(pip)?.[1]);
  return {
    ...(registry === undefined ? {} : { npm_config_registry: registry }),
    ...(index === undefined ? {} : { PIP_INDEX_URL: index, UV_DEFAULT_INDEX: index }),
  };
}

/** Of an environment. One that a build's network does not lead to is no way of its: this host, private ranges. Pure. */
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

/** Slots have no IPv6. */
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
