/**
 * All settings of the server in one table: name, accepted values, default and purpose. This file is the only reader of
 * the environment.
 *
 * The key `poolSize` is `KONTOR_POOL_SIZE` in the environment and `pool_size` in `<data>/kontor.toml`. Flags override
 * the environment, the environment overrides the file, and the file overrides the default. An unknown name or an
 * invalid value is an error that names the key, so that a typing mistake never becomes a default.
 */
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parse as parseToml } from "smol-toml";
import { parseEntry } from "./egress/allowlist.ts";
import { AUTO } from "./egress/defaults.ts";
import { nearest } from "./lib/nearest.ts";
import { isLoopback, parseOpenedHosts, parsePorts } from "./lib/network/addresses.ts";
import { parseRegions } from "./lib/regions.ts";
import { withRestartSettings } from "./restart-settings.ts";

/** A kind of value. `parse` returns undefined for invalid text, and `expected` describes valid text. */
interface Kind<T> {
  expected: string;
  parse(text: string): T | undefined;
}

interface Key<T> extends Kind<T> {
  group: Group;
  default: T;
  doc: string;
  /** True for a value that is never printed. */
  secret?: boolean;
  /** A second name in the environment that other programs use too. */
  alias?: string;
  /** True for a setting that is not read from the file, because it locates the file. */
  notInFile?: boolean;
}

const groups = ["server", "database", "machines", "backups", "network", "accounts", "limits"] as const;
type Group = (typeof groups)[number];

const text: Kind<string> = { expected: "a text", parse: (value) => value || undefined };
const path: Kind<string> = { expected: "a path", parse: (value) => (value ? resolve(value) : undefined) };
const flag: Kind<boolean> = {
  expected: "on or off",
  parse: (value) =>
    ({ on: true, true: true, "1": true, off: false, false: false, "0": false })[value.toLowerCase()],
};
const list: Kind<readonly string[]> = {
  expected: "a list, separated by commas",
  parse: (value) =>
    Object.freeze(
      value
        .split(",")
        .map((item) => item.trim())
        .filter(Boolean),
    ),
};
const prepareGroups = ["addons", "functions", "apps"] as const;
export type PrepareGroup = (typeof prepareGroups)[number];
const groupsToPrepare: Kind<readonly PrepareGroup[]> = {
  expected: `none, all, or a list of ${prepareGroups.join(", ")}, separated by commas`,
  parse: (value) => {
    if (value === "none") return [];
    if (value === "all") return prepareGroups;
    const wanted = value.split(",").map((item) => item.trim());
    const known = prepareGroups.filter((group) => wanted.includes(group));
    return known.length > 0 && known.length === new Set(wanted).size ? Object.freeze(known) : undefined;
  },
};
const hosts: Kind<readonly string[]> = {
  expected: "host names, addresses and CIDR ranges, separated by commas",
  parse: (value) => {
    try {
      const entries = list.parse(value) ?? [];
      parseOpenedHosts(entries);
      return entries;
    } catch {
      return undefined;
    }
  },
};
const egressHosts: Kind<readonly string[]> = {
  expected:
    "auto and host names, *.example.com for all below a name, :port if it is not 443 or 80, " +
    "separated by commas",
  parse: (value) => {
    const items = list.parse(value);
    return items?.every((item) => item === AUTO || parseEntry(item) !== undefined) ? items : undefined;
  },
};
const regions: Kind<readonly string[]> = {
  expected:
    "regions as code=name, or code=name@/directory, separated by commas; codes and directories " + "differ",
  parse: (value) => {
    const items = list.parse(value);
    return items && parseRegions(items) ? items : undefined;
  },
};
/** Ranges of addresses. Names are not accepted, because they need a look-up and may change. */
const ranges: Kind<readonly string[]> = {
  expected: "addresses and CIDR ranges, separated by commas",
  parse: (value) => {
    const entries = hosts.parse(value);
    return entries && parseOpenedHosts(entries).names.size === 0 ? entries : undefined;
  },
};
const url: Kind<string> = {
  expected: "an http or https address without a path",
  parse: (value) => {
    const parsed = URL.parse(value);
    return parsed && /^https?:$/.test(parsed.protocol) && parsed.pathname === "/" ? parsed.origin : undefined;
  },
};
const directoryUrl: Kind<string> = {
  expected: "an https address",
  parse: (value) => (URL.parse(value)?.protocol === "https:" ? value : undefined),
};
const bucket: Kind<string> = {
  expected: "the name of a bucket: 3 to 63 lower-case letters, digits, hyphens and dots",
  parse: (value) => (/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(value) ? value : undefined),
};
const blobPrefix: Kind<string> = {
  expected: "words of letters, digits, dots, hyphens and underscores, each followed by a slash",
  parse: (value) => (/^(?:(?!\.{1,2}\/)[A-Za-z0-9._-]+\/)+$/.test(value) ? value : undefined),
};
const baseAddress: Kind<string> = {
  expected: "an http or https address without a query",
  parse: (value) => {
    const parsed = URL.parse(value);
    return parsed && /^https?:$/.test(parsed.protocol) && !/[?#]/.test(value) ? value : undefined;
  },
};
const headers: Kind<Readonly<Record<string, string>>> = {
  expected: "headers as name=value, separated by commas",
  parse: (value) => {
    const pairs = (list.parse(value) ?? []).map((item) =>
      /^([\w!#$%&'*+.^`|~-]+)=([\x20-\x7e]*)$/.exec(item),
    );
    return pairs.every((pair) => pair !== null)
      ? Object.freeze(Object.fromEntries(pairs.map(([, name = "", said = ""]) => [name.toLowerCase(), said])))
      : undefined;
  },
};
const databaseUrl: Kind<string> = {
  expected: "postgres://user:password@host:port/database",
  parse: (value) => (/^postgres(ql)?:\/\/./.test(value) ? value : undefined),
};
const email: Kind<string> = {
  expected: "an e-mail address",
  parse: (value) => (/^[^@\s]+@[^@\s]+$/.test(value) ? value.toLowerCase() : undefined),
};
const domain: Kind<string> = {
  expected: "a host name, with a port if it is not 443",
  parse: (value) => (/^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?$/.test(value) ? value : undefined),
};
const ports: Kind<string> = {
  expected: "two ports, 1024 or higher, as first-last",
  parse: (value) => (parsePorts(value) ? value : undefined),
};
/** 32 bytes, as 64 hexadecimal digits or as base64. */
const secretsKey: Kind<Buffer> = {
  expected: "32 bytes as 64 hexadecimal digits or base64",
  parse: (value) => {
    const bytes = /^[0-9a-f]{64}$/i.test(value) ? Buffer.from(value, "hex") : Buffer.from(value, "base64");
    return bytes.length === 32 ? bytes : undefined;
  },
};

function whole(min: number, max: number): Kind<number> {
  return {
    expected: `a whole number from ${min} to ${max}`,
    parse: (value) =>
      /^\d{1,15}$/.test(value) && Number(value) >= min && Number(value) <= max ? Number(value) : undefined,
  };
}

function decimal(min: number, max: number): Kind<number> {
  return {
    expected: `a number from ${min} to ${max}`,
    parse: (value) =>
      /^\d+(\.\d+)?$/.test(value) && Number(value) >= min && Number(value) <= max ? Number(value) : undefined,
  };
}

function oneOf<const T extends string>(...values: readonly T[]): Kind<T> {
  return { expected: values.join(" | "), parse: (value) => values.find((known) => known === value) };
}

/** Accepts the values of `kind`, and `word`, which stands for null. */
function or<T>(word: string, kind: Kind<T>): Kind<T | null> {
  return {
    expected: `${word}, or ${kind.expected}`,
    parse: (value) => (value === word ? null : kind.parse(value)),
  };
}

/** Accepts the values of `kind`. A missing setting is null; no word stands for null. */
function optional<T>(kind: Kind<T>): Kind<T | null> {
  return kind;
}

function key<T>(
  group: Group,
  kind: Kind<T>,
  fallback: NoInfer<T>,
  doc: string,
  more: Partial<Key<T>> = {},
): Key<T> {
  return { ...kind, group, default: fallback, doc, ...more };
}

const keys = {
  dataDir: key("server", path, "/var/lib/kontor", "Directory of all data: database, images, keys.", {
    notInFile: true,
  }),
  host: key("server", text, "127.0.0.1", "Address the HTTP server listens on."),
  port: key("server", whole(0, 65_535), 8080, "Port the HTTP server listens on; 0 chooses a free port."),
  tlsMode: key(
    "server",
    oneOf("local", "acme", "off"),
    "local",
    "Source of TLS certificates: local (an own authority), acme (a public authority, RFC 8555), " +
      "or off (a proxy in front ends TLS).",
  ),
  tlsPort: key(
    "server",
    whole(0, 65_535),
    8443,
    "Port the TLS server listens on; 0 chooses a free port. Default domains include it.",
  ),
  trustedProxies: key(
    "server",
    ranges,
    Object.freeze([]),
    "Proxies in front of the server whose X-Forwarded-For and -Proto are trusted, for apps and for the APIs.",
  ),
  acmeDirectory: key(
    "server",
    directoryUrl,
    "https://acme-v02.api.letsencrypt.org/directory",
    "Directory URL of the certificate authority for tls_mode = acme.",
  ),
  acmeEmail: key("server", optional(email), null, "Contact address for the certificate authority."),
  publicUrl: key(
    "server",
    optional(url),
    null,
    "Address at which clients reach the server, if it is not the loopback address.",
  ),
  metricsLoopback: key(
    "server",
    flag,
    false,
    "Serve GET /metrics to clients on this host without an operator's token.",
  ),
  logLevel: key(
    "server",
    oneOf("debug", "info", "warn", "error", "silent"),
    "info",
    "Lowest level of log lines.",
  ),
  logFormat: key(
    "server",
    oneOf("json", "pretty"),
    "json",
    "Log format: json (an object per line), or pretty (lines for people).",
  ),
  otlpEndpoint: key(
    "server",
    optional(baseAddress),
    null,
    "Traces of agent runs: address of an OpenTelemetry collector for OTLP over HTTP, without " +
      "/v1/traces. Default: no traces.",
  ),
  otlpHeaders: key(
    "server",
    optional(headers),
    null,
    "Headers that the collector at otlp_endpoint requires, such as a key.",
    {
      secret: true,
    },
  ),
  otlpContent: key("server", flag, false, "Traces also hold the inputs and outputs of models and tools."),
  shutdownGraceSeconds: key(
    "server",
    whole(0, 3600),
    10,
    "Seconds that running requests and jobs get to end at a shutdown.",
  ),
  secretsKey: key(
    "server",
    optional(secretsKey),
    null,
    "Key of the secrets at rest. Default: <data>/secrets.key, which the first start creates.",
    { secret: true },
  ),

  databaseUrl: key(
    "database",
    optional(databaseUrl),
    null,
    "PostgreSQL 15 or newer to use. Default: the server's own PostgreSQL under <data>/postgres.",
    { secret: true, alias: "DATABASE_URL" },
  ),
  databaseConnections: key(
    "database",
    whole(4, 1000),
    20,
    "Maximum of connections to PostgreSQL for requests and jobs; upkeep has up to five more.",
  ),

  runtime: key(
    "machines",
    oneOf("gvisor", "fake"),
    "gvisor",
    "Isolation of machines; fake runs nothing and is for tests.",
  ),
  allowFakeRuntime: key("machines", flag, false, "Required for runtime = fake."),
  killFile: key(
    "machines",
    optional(text),
    null,
    "For tests: file with the named point at which the server ends by SIGKILL.",
  ),
  runscPlatform: key(
    "machines",
    oneOf("auto", "systrap", "kvm"),
    "auto",
    "gVisor's method of intercepting system calls.",
  ),
  runscPath: key(
    "machines",
    optional(path),
    null,
    "Path of runsc for new sandboxes. Default: the one on PATH. A paused sandbox keeps the " +
      "version that wrote it.",
  ),
  runcPath: key(
    "machines",
    optional(path),
    null,
    "Path of runc for apps and build steps. Default: the one on PATH for apps, the one in /usr " +
      "for builds.",
  ),
  buildahPath: key("machines", optional(path), null, "Path of buildah for builds. Default: the one in /usr."),
  instance: key(
    "machines",
    or("auto", whole(0, 63)),
    null,
    "Number that separates several servers on one host: addresses, network and cgroup names.",
  ),
  regions: key(
    "machines",
    regions,
    Object.freeze(["eu-1=This host"]),
    "Regions that callers may choose, the default first; a directory holds the region's volumes. " +
      "Default directory: <data>/volumes.",
  ),
  poolTemplates: key(
    "machines",
    or("auto", list),
    null,
    "Templates with warm machines; auto: debian-12, and one machine of code-interpreter from 8 " +
      "GiB of memory.",
  ),
  poolSize: key("machines", whole(0, 100), 2, "Minimum of warm machines per pool template."),
  poolMax: key("machines", whole(0, 100), 8, "Maximum of warm machines of a busy pool template."),
  prepareTemplates: key(
    "machines",
    or("all", list),
    null,
    "Templates built ahead of time; others are built on first use.",
  ),
  prepareImages: key(
    "machines",
    groupsToPrepare,
    [],
    "Images built ahead of time, after the templates: images of databases, and bases of functions " +
      "and of apps without a Dockerfile. Other images are built on first use, which takes minutes.",
  ),
  memoryOvercommit: key(
    "machines",
    decimal(0.1, 10),
    1.5,
    "Memory promised to machines, as a multiple of the host's memory.",
  ),
  cpuOvercommit: key(
    "machines",
    decimal(0.1, 100),
    16,
    "Cores promised to machines, as a multiple of the host's cores.",
  ),
  maxMachines: key("machines", whole(1, 10_000), 500, "Maximum of machines on this host."),
  diskReserveGb: key(
    "machines",
    decimal(0, 10_000),
    1,
    "Free disk space in GB: below this, no machine starts and no volume moves to the disk.",
  ),
  suspensionGraceSeconds: key(
    "machines",
    whole(0, 31 * 24 * 3600),
    0,
    "Seconds between a workspace's suspension and the freeze of its machines. They are thawed when it ends.",
  ),
  machineDiskGb: key("machines", whole(1, 1000), 10, "Maximum disk space of a machine in GB."),
  gitConcurrency: key(
    "machines",
    whole(1, 1000),
    8,
    "Maximum of concurrent fetches from and pushes to hosted repositories; others wait.",
  ),
  gitTimeoutMinutes: key("machines", whole(1, 1440), 15, "Timeout of a fetch, push or checkout, in minutes."),
  gitPushMaxMb: key("machines", whole(1, 1_000_000), 1024, "Largest push to a hosted repository, in MB."),
  gitRepositoryMaxMb: key("machines", whole(1, 1_000_000), 4096, "Largest hosted repository, in MB."),
  gitCheckoutMaxMb: key(
    "machines",
    whole(1, 1_000_000),
    2048,
    "Largest checkout, and the most that is fetched for it, in MB.",
  ),
  buildConcurrency: key(
    "machines",
    whole(1, 100),
    2,
    "Maximum of concurrent template builds, and of concurrent app builds; others wait.",
  ),
  buildCacheGb: key(
    "machines",
    decimal(0.1, 100_000),
    20,
    "Disk space in GB for images of apps and their build caches, above which caches are pruned.",
  ),
  buildTimeoutMinutes: key("machines", whole(1, 1440), 30, "Timeout of a build's steps, in minutes."),
  buildMemoryMb: key("machines", whole(256, 1_000_000), 4096, "Maximum memory of a build, in MB."),
  buildCpus: key("machines", decimal(0.1, 64), 2, "Cores of a build."),

  deployConcurrency: key(
    "machines",
    whole(1, 100),
    4,
    "Maximum of concurrent deployments that build; others wait.",
  ),
  deployTimeoutMinutes: key(
    "machines",
    whole(1, 1440),
    60,
    "Timeout of a deployment in minutes, its wait for a builder included.",
  ),
  appStartSeconds: key("machines", whole(1, 600), 60, "Seconds an app gets to start responding."),
  appDrainSeconds: key(
    "machines",
    whole(0, 3600),
    30,
    "Seconds that an old app's requests in flight get to end after a deployment.",
  ),
  appFrozenMinutes: key(
    "machines",
    whole(0, 10_000),
    15,
    "Minutes for which a sleeping app keeps its memory and wakes at once.",
  ),
  functionFrozenMinutes: key(
    "machines",
    whole(0, 10_000),
    10,
    "Minutes for which an idle function keeps its memory and wakes at once; after them it is on " + "disk.",
  ),

  backupsStore: key(
    "backups",
    oneOf("directory", "s3"),
    "directory",
    "Storage of add-on backups: directory (on this host), or s3 (an object store).",
  ),
  backupsDirectory: key(
    "backups",
    optional(path),
    null,
    "Directory of backups for backups_store = directory. Default: <data>/backups.",
  ),
  backupsS3Endpoint: key(
    "backups",
    optional(url),
    null,
    "Address of the object store; downloads of backups lead there too.",
  ),
  backupsS3Bucket: key("backups", optional(bucket), null, "Bucket of the object store, which must exist."),
  backupsS3Region: key(
    "backups",
    text,
    "us-east-1",
    "Region for which requests to the object store are signed.",
  ),
  backupsS3AccessKey: key("backups", optional(text), null, "Access key id of the object store."),
  backupsS3SecretKey: key("backups", optional(text), null, "Secret access key of the object store.", {
    secret: true,
  }),
  backupsS3Prefix: key(
    "backups",
    blobPrefix,
    "kontor/",
    "Prefix of backup names in the bucket; use another for each installation.",
  ),
  backupsS3VirtualHosted: key(
    "backups",
    flag,
    false,
    "The bucket is part of the object store's host name instead of the path.",
  ),

  uplink: key(
    "network",
    or("auto", text),
    null,
    "Network interface of the machines' outgoing traffic; auto: the default route's.",
  ),
  dnsServers: key("network", or("auto", list), null, "DNS resolvers for machines; auto: the host's own."),
  defaultEgressAllowlist: key(
    "network",
    egressHosts,
    Object.freeze([AUTO]),
    "Hosts that a restricted machine may reach; auto: package sources of this host's apt, npm, " +
      "pip and git, and code forges.",
  ),
  allowPrivateHosts: key(
    "network",
    hosts,
    Object.freeze([]),
    "Private hosts that callers' addresses may lead to: webhooks, models, forges on the LAN.",
  ),
  gitCaFile: key(
    "network",
    optional(path),
    null,
    "Certificate authorities for https repositories. Default: the host's own.",
  ),
  gitKnownHosts: key(
    "network",
    optional(path),
    null,
    "Trusted host keys of ssh repositories (known_hosts). Default: the first key seen.",
  ),
  appsDomain: key("network", domain, "apps.localhost:8443", "Domain of deployed apps."),
  previewDomain: key("network", domain, "localhost:8443", "Domain of previews of sandbox ports."),

  addonsHost: key(
    "network",
    text,
    "127.0.0.1",
    "Address that public add-ons listen on; if it is not a loopback address, they require TLS.",
  ),
  addonsPorts: key("network", ports, "15400-15499", "Ports of public add-ons, one for each."),
  addonsPublicName: key(
    "network",
    optional(domain),
    null,
    "Host name in the addresses of public add-ons. Default: addons_host.",
  ),

  operatorEmail: key(
    "accounts",
    email,
    "operator@kontor.local",
    "Sign-in name of the account that the first start creates.",
  ),

  activityRetentionDays: key(
    "accounts",
    or("forever", whole(1, 36_500)),
    365,
    "Days after which entries of the audit log are deleted, or forever.",
  ),
  activityAccessRetentionDays: key(
    "accounts",
    or("forever", whole(1, 36_500)),
    90,
    "Days that the audit log keeps entries of reads and runs, or forever. activity_retention_days " +
      "limits them too.",
  ),

  rateLimits: key("limits", flag, true, "Limit requests per token."),
  rateLimitPlatformStarter: key("limits", whole(1, 1e6), 60, "Platform requests per minute, plan starter."),
  rateLimitPlatformPro: key("limits", whole(1, 1e6), 100, "Platform requests per minute, plan pro."),
  streamsStarter: key(
    "limits",
    whole(2, 1e6),
    100,
    "Maximum of open streams, plan starter; half for a single token.",
  ),
  streamsPro: key(
    "limits",
    whole(2, 1e6),
    200,
    "Maximum of open streams, plan pro; half for a single token.",
  ),
  streamsTeam: key(
    "limits",
    whole(2, 1e6),
    500,
    "Maximum of open streams, plan team; half for a single token.",
  ),
  rateLimitPlatformTeam: key("limits", whole(1, 1e6), 500, "Platform requests per minute, plan team."),
  rateLimitSandboxFree: key("limits", whole(1, 1e6), 240, "Sandbox requests per minute, tier free."),
  rateLimitSandboxPayg: key("limits", whole(1, 1e6), 2400, "Sandbox requests per minute, tier payg."),
  rateLimitSandboxEnterprise: key(
    "limits",
    whole(1, 1e6),
    12_000,
    "Sandbox requests per minute, tier enterprise.",
  ),
  rateLimitSandboxCreatesPerSecond: key("limits", whole(1, 1e6), 10, "Sandboxes created per second."),
  rateLimitSandboxCreatesBurst: key("limits", whole(1, 1e6), 100, "Burst of sandbox creations."),
  rateLimitAddress: key(
    "limits",
    whole(1, 1e6),
    1200,
    "Requests per minute without a credential from one address, such as deliveries of webhooks and sign-in links.",
  ),
  rateLimitUnknownCredentials: key(
    "limits",
    whole(1, 1e6),
    600,
    "Requests per minute from one address with an unknown, revoked or expired credential.",
  ),
  maxSandboxesFree: key("limits", whole(0, 10_000), 5, "Maximum of running sandboxes, tier free."),
  maxSandboxesPayg: key("limits", whole(0, 10_000), 50, "Maximum of running sandboxes, tier payg."),
  maxSandboxesEnterprise: key(
    "limits",
    whole(0, 10_000),
    500,
    "Maximum of running sandboxes, tier enterprise.",
  ),
};

type Keys = typeof keys;
export type ConfigKey = keyof Keys;
export type Config = { readonly [K in ConfigKey]: Keys[K] extends Key<infer T> ? T : never };
type ConfigSource = "default" | "file" | "environment" | "flag";

/** All errors of the configuration at once, each with its key. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join("\n"));
    this.problems = problems;
  }
}

/**
 * Environment variables of clients. The server ignores these variables, because the shell that starts it may have them.
 */
const clientVariables = ["KONTOR_URL", "KONTOR_TOKEN"];

/** True for an environment variable of a server setting. */
export const isSetting = (variable: string): boolean =>
  variable.startsWith("KONTOR_") && !clientVariables.includes(variable);

/** Source of each value of a configuration, kept apart so that a Config holds only its values. */
const sourcesOf = new WeakMap<Config, Record<string, ConfigSource>>();

/** Reads the server's own configuration, with the settings of the last `kontor restart`. Throws a `ConfigError`. */
export const loadServerConfig = (): Config => loadConfig({ env: withRestartSettings(process.env) });

/**
 * Reads the configuration. `dataDir` and `overrides` come from flags (`overrides` as text, keys as in Config). Throws a
 * `ConfigError`.
 */
export function loadConfig(
  options: {
    env?: NodeJS.ProcessEnv;
    dataDir?: string | undefined;
    overrides?: Partial<Record<ConfigKey, string>>;
  } = {},
): Config {
  const env = options.env ?? process.env;
  const problems: string[] = [];
  const values: Record<string, unknown> = {};
  const sources: Record<string, ConfigSource> = {};

  const take = (name: ConfigKey, value: string, source: ConfigSource, said: string) => {
    const row = keys[name] as Key<unknown>;
    const parsed = row.parse(value.trim());
    if (parsed === undefined) {
      problems.push(
        `${said}: expected ${row.expected}, got ${row.secret ? "something else" : JSON.stringify(value)}`,
      );
      return;
    }
    values[name] = parsed;
    sources[name] = source;
  };
  const takeEnvironment = (name: ConfigKey) => {
    for (const variable of environmentNames(name)) {
      const value = env[variable];
      // An empty variable counts as missing: shell scripts leave variables empty.
      if (value !== undefined && value.trim() !== "") return take(name, value, "environment", variable);
    }
  };

  for (const name of configKeys) {
    values[name] = keys[name].default;
    sources[name] = "default";
  }
  takeEnvironment("dataDir");
  if (options.dataDir !== undefined) take("dataDir", options.dataDir, "flag", "--data");

  const file = join(values["dataDir"] as string, "kontor.toml");
  for (const [fileKey, value] of Object.entries(readFile(file, problems))) {
    const name = configKeys.find((known) => snake(known) === fileKey && !isNotInFile(known));
    if (name) take(name, tomlText(value), "file", `${file}: ${fileKey}`);
    else problems.push(`${file}: ${fileKey} is not a setting${hint(fileKey, configKeys.map(snake))}`);
  }

  const variables = configKeys.flatMap((name) => environmentNames(name));
  for (const variable of Object.keys(env)) {
    if (isSetting(variable) && !variables.includes(variable)) {
      problems.push(`${variable} is not a setting${hint(variable, variables)}`);
    }
  }
  for (const name of configKeys) if (name !== "dataDir") takeEnvironment(name);
  for (const [name, value] of Object.entries(options.overrides ?? {})) {
    take(name as ConfigKey, value, "flag", `--${snake(name).replaceAll("_", "-")}`);
  }

  // Default domains get the configured TLS port.
  for (const name of ["appsDomain", "previewDomain"] as const) {
    if (sources[name] === "default" && sources["tlsPort"] !== "default" && values["tlsPort"] !== 0) {
      const port = values["tlsPort"] as number;
      values[name] = hostname(keys[name].default) + (port === 443 ? "" : `:${port}`);
    }
  }

  const config = Object.freeze(values) as Config;
  if (problems.length === 0) problems.push(...contradictions(config));
  if (problems.length > 0) throw new ConfigError(problems);
  sourcesOf.set(config, sources);
  return config;
}

/** A row for people: accepted values, value and source of a key. Secrets show as `(set)`. */
export interface ConfigRow {
  group: string;
  /** Name in the file. */
  name: string;
  env: string;
  value: string;
  source: ConfigSource;
  expected: string;
  doc: string;
}

export function describeConfig(config: Config): ConfigRow[] {
  const sources = sourcesOf.get(config) ?? {};
  return configKeys
    .map((name) => ({ name, key: keys[name] as Key<unknown> }))
    .toSorted((a, b) => groups.indexOf(a.key.group) - groups.indexOf(b.key.group))
    .map(({ name, key: row }) => ({
      group: row.group,
      name: snake(name),
      env: environmentNames(name)[0]!,
      value: show(config[name], row),
      source: sources[name] ?? "default",
      expected: row.expected,
      doc: row.doc,
    }));
}

/**
 * Returns the descriptors of sockets that were bound before this process started and that outlive it: plain HTTP first,
 * then TLS. `kontor-shim keep` and systemd pass them on (sd_listen_fds(3)). Empty without them.
 */
export function inheritedSockets(env: NodeJS.ProcessEnv = process.env, pid = process.pid): number[] {
  if (env["LISTEN_PID"] !== String(pid)) return [];
  const count = Number(env["LISTEN_FDS"]);
  return Number.isInteger(count)
    ? Array.from({ length: Math.min(Math.max(count, 0), 2) }, (_, n) => 3 + n)
    : [];
}

/** Returns the address that always works on this host: plain loopback. */
export function baseUrl(config: Pick<Config, "port">): string {
  return `http://127.0.0.1:${config.port}`;
}

/** Returns a domain as names are compared: without the port of addresses. */
export function hostname(domain: string): string {
  return domain.replace(/:\d+$/, "");
}

const configKeys = Object.keys(keys) as ConfigKey[];

function contradictions(config: Config): string[] {
  const problems: string[] = [];
  if (config.runtime === "fake" && !config.allowFakeRuntime) {
    problems.push("KONTOR_RUNTIME: fake isolates nothing; set KONTOR_ALLOW_FAKE_RUNTIME=1 to use it");
  }
  if (config.poolMax < config.poolSize) {
    problems.push(`KONTOR_POOL_MAX: expected at least pool_size (${config.poolSize}), got ${config.poolMax}`);
  }
  if (!isLoopback(config.addonsHost) && config.tlsMode === "off") {
    problems.push(
      `KONTOR_ADDONS_HOST: add-ons on ${config.addonsHost} require TLS, but tls_mode = off has no ` +
        "certificates; use a loopback address or another tls_mode",
    );
  }
  for (const name of ["previewDomain", "appsDomain"] as const) {
    const host = hostname(config[name]);
    if (config.tlsMode === "acme" && (!host.includes(".") || host.endsWith(".localhost"))) {
      problems.push(
        `KONTOR_${snake(name).toUpperCase()}: tls_mode = acme requires a public name, not ${host}`,
      );
    }
  }
  if (config.backupsStore === "s3") {
    for (const name of [
      "backupsS3Endpoint",
      "backupsS3Bucket",
      "backupsS3AccessKey",
      "backupsS3SecretKey",
    ] as const) {
      if (config[name] === null)
        problems.push(`KONTOR_${snake(name).toUpperCase()}: required for backups_store = s3`);
    }
  }
  return problems;
}

function readFile(file: string, problems: string[]): Record<string, unknown> {
  let content: string;
  try {
    content = readFileSync(file, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT")
      problems.push(`${file}: ${(error as Error).message}`);
    return {};
  }
  try {
    return parseToml(content);
  } catch (error) {
    problems.push(`${file}: ${(error as Error).message}`);
    return {};
  }
}

/** Converts a TOML value to its text in the environment. A table becomes text that no kind accepts. */
function tomlText(value: unknown): string {
  if (Array.isArray(value)) return value.map(tomlText).join(",");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function environmentNames(name: ConfigKey): string[] {
  const { alias } = keys[name] as Key<unknown>;
  const own = `KONTOR_${snake(name).toUpperCase()}`;
  return alias ? [own, alias] : [own];
}

function isNotInFile(name: ConfigKey): boolean {
  return (keys[name] as Key<unknown>).notInFile ?? false;
}

function show(value: Config[ConfigKey], row: Key<unknown>): string {
  if (value === null) return ["auto", "all"].find((word) => row.parse(word) === null) ?? "(not set)";
  if (row.secret || Buffer.isBuffer(value)) return "(set)";
  if (typeof value === "boolean") return value ? "on" : "off";
  return Array.isArray(value) ? value.join(",") : String(value as string | number);
}

function hint(name: string, known: readonly string[]): string {
  const near = nearest(name, known);
  return near ? `, did you mean ${near}?` : "";
}

function snake(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
