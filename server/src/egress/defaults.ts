/**
 * The default allowlist: where this host itself gets packages from, and the usual code forges. The first is read from
 * the host's own programs, so a company's mirrors are found like anybody's, and no registry's address stands here.
 */
import { parseAuthority, parseEntry } from "./allowlist.ts";

/** In the setting, stands for what the host's own programs say. */
export const AUTO = "auto";

export interface HostPrograms {
  /** What a program prints; fails where it is not installed or fails. */
  ask: (argv: readonly string[]) => Promise<string>;
  /** Addresses of the package archives the host's apt uses. */
  aptArchives: () => Promise<readonly string[]>;
}

/** Where code is hosted, for git by HTTPS and for the archives and files that installers take from there. */
const FORGES: readonly string[] = [
  "github.com",
  "codeload.github.com",
  "objects.githubusercontent.com",
  "raw.githubusercontent.com",
  "release-assets.githubusercontent.com",
  "gitlab.com",
  "bitbucket.org",
  "codeberg.org",
];

/**
 * Debian's own. What stands first on PATH may be a version manager's stand-in, which does work of its own on the way:
 * pyenv's takes a lock, and whoever is killed while holding it makes the next one wait for a minute.
 */
const PYTHON = "/usr/bin/python3";

/** A program and the addresses in what it prints; each knows what its own defaults are. */
const programs: readonly { argv: readonly string[]; read: (printed: string) => readonly string[] }[] = [
  // Every setting, those of scopes (`@company:registry`) and built-in ones included.
  { argv: ["npm", "config", "list", "--long", "--json"], read: npmRegistries },
  { argv: [PYTHON, "-m", "pip", "config", "list"], read: addressesIn },
  // What pip uses where nothing is configured: its index, and the host its files lie on.
  {
    argv: [
      PYTHON,
      "-c",
      "from pip._internal.models.index import PyPI; print(PyPI.url, 'https://' + PyPI.file_storage_domain)",
    ],
    read: addressesIn,
  },
  // The forges that git on this host is sent to instead of others.
  { argv: ["git", "config", "--get-regexp", "^url\\..*\\.insteadof$"], read: addressesIn },
];

/** The setting with `auto` spelt out; every host once, in order. */
export async function expandAllowlist(setting: readonly string[], host: HostPrograms): Promise<string[]> {
  if (!setting.includes(AUTO)) return [...setting];
  const derived = await hostsOf(host);
  return [...new Set(setting.flatMap((entry) => (entry === AUTO ? derived : entry)))];
}

async function hostsOf(host: HostPrograms): Promise<string[]> {
  const found = await Promise.all([
    host.aptArchives().catch(() => []),
    ...programs.map(({ argv, read }) =>
      host
        .ask(argv)
        .then(read)
        .catch(() => []),
    ),
  ]);
  return [...found.flat().flatMap((address) => entryFor(address) ?? []), ...FORGES];
}

function npmRegistries(printed: string): string[] {
  const settings = JSON.parse(printed) as Record<string, unknown>;
  return Object.entries(settings).flatMap(([name, value]) =>
    (name === "registry" || name.endsWith(":registry")) && typeof value === "string" ? [value] : [],
  );
}

function addressesIn(text: string): string[] {
  return text.match(/https?:\/\/[^\s'"]+/g) ?? [];
}

/** `https://user@host:8443/path` → `host:8443`; undefined for what no entry can stand for, such as an address. */
function entryFor(address: string): string | undefined {
  const { host = "", protocol } = URL.parse(address) ?? {};
  // The URL parser has dropped the port where it is the scheme's own.
  if (!/^https?:$/.test(protocol ?? "") || parseAuthority(host, 1) === undefined) return undefined;
  return parseEntry(host) === undefined ? undefined : host;
}
