/**
 * The default allowlist: the package sources of this host, and the usual code forges. The sources come from the
 * settings of the host's own programs, so a company's mirrors are included, and no registry address is written here.
 */
import { parseAuthority, parseEntry } from "./allowlist.ts";

/** In the setting, stands for the sources of the host's own programs. */
export const AUTO = "auto";

export interface HostPrograms {
  /** Returns the output of a program. Fails if it is not installed or fails. */
  run: (argv: readonly string[]) => Promise<string>;
  /** Addresses of the package archives of the host's apt. */
  aptArchives: () => Promise<readonly string[]>;
}

/** Code forges: hosts for git over HTTPS, and for the archives and files that installers fetch from these forges. */
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
 * Debian's own Python. The first `python3` on PATH may be a shim of a version manager with side effects. For example,
 * pyenv's shim takes a lock, and a kill while it holds the lock delays the next call by a minute.
 */
const PYTHON = "/usr/bin/python3";

/** Programs, each with a function that reads addresses from its output. Each program reports its own defaults. */
const programs: readonly { argv: readonly string[]; read: (printed: string) => readonly string[] }[] = [
  // Lists all settings, including those of scopes (`@company:registry`) and built-in defaults.
  { argv: ["npm", "config", "list", "--long", "--json"], read: npmRegistries },
  { argv: [PYTHON, "-m", "pip", "config", "list"], read: addressesIn },
  // pip's defaults: its index, and the host of its files.
  {
    argv: [
      PYTHON,
      "-c",
      "from pip._internal.models.index import PyPI; print(PyPI.url, 'https://' + PyPI.file_storage_domain)",
    ],
    read: addressesIn,
  },
  // Forges to which git on this host redirects other addresses.
  { argv: ["git", "config", "--get-regexp", "^url\\..*\\.insteadof$"], read: addressesIn },
];

/** Expands `auto` in the setting. Each host appears once, in order. */
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
        .run(argv)
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

/**
 * `https://user@host:8443/path` → `host:8443`. Undefined for a URL that no entry can match, such as one with an IP
 * address.
 */
function entryFor(address: string): string | undefined {
  const { host = "", protocol } = URL.parse(address) ?? {};
  // The URL parser drops a port that is the scheme's default.
  if (!/^https?:$/.test(protocol ?? "") || parseAuthority(host, 1) === undefined) return undefined;
  return parseEntry(host) === undefined ? undefined : host;
}
