/**
 * Every setting of the server, in one table: what it is called, what it may be, what it is by default and what it is
 * for. This file is the only reader of the environment.
 *
 * A key `poolSize` is `KONTOR_POOL_SIZE` in the environment and `pool_size` in `<data>/kontor.toml`. Flags beat the
 * environment, the environment beats the file, the file beats the default. A name nobody knows or a value that does
 * not fit is an error that names the key: a typing mistake must not become a default.
 */
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { parse as parseToml } from "smol-toml";
import { parseEntry } from "./egress/allowlist.ts";
import { AUTO } from "./egress/defaults.ts";
import { nearest } from "./http/nearest.ts";
import { isLoopback, parseOpenedHosts, parsePorts } from "./lib/addresses.ts";
import { parseRegions } from "./machines/regions.ts";
import { withRestartSettings } from "./restart-settings.ts";

/** One kind of value: `parse` answers undefined for text that does not fit, `expected` says what would. */
interface Kind<T> {
  expected: string;
  parse(text: string): T | undefined;
}

interface Key<T> extends Kind<T> {
  group: Group;
  default: T;
  doc: string;
  /** Its value is never printed. */
  secret?: boolean;
  /** A second name in the environment, one that other programs use too. */
  alias?: string;
  /** Not in the file: it says where the file is. */
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
export const prepareGroups = ["addons", "functions", "apps"] as const;
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
    "auto and host names, *.example.com for all below one, :port where it is not 443 or 80, with commas",
  parse: (value) => {
    const items = list.parse(value);
    return items?.every((item) => item === AUTO || parseEntry(item) !== undefined) ? items : undefined;
  },
};
const regions: Kind<readonly string[]> = {
  expected: "regions as code=name, or code=name@/directory, with commas; codes and directories differ",
  parse: (value) => {
    const items = list.parse(value);
    return items && parseRegions(items) ? items : undefined;
  },
};
/** Ranges of addresses; names would have to be asked for, and may change. */
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
  expected: "headers as name=value, with commas",
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
  expected: "a host name, with a port where it is not 443",
  parse: (value) => (/^[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:\d{1,5})?$/.test(value) ? value : undefined),
};
const ports: Kind<string> = {
  expected: "two ports from 1024 on, first-last",
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

/** The kind itself, or a word that stands for null. */
function or<T>(word: string, kind: Kind<T>): Kind<T | null> {
  return {
    expected: `${word}, or ${kind.expected}`,
    parse: (value) => (value === word ? null : kind.parse(value)),
  };
}

/** Null where it is not set; there is no word for that. */
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
  dataDir: key("server", path, "/var/lib/kontor", "Where everything is kept: database, images, keys.", {
    notInFile: true,
  }),
  host: key("server", text, "127.0.0.1", "Address the HTTP server listens on."),
  port: key("server", whole(0, 65_535), 8080, "Port the HTTP server listens on; 0 takes a free one."),
  tlsMode: key(
    "server",
    oneOf("local", "acme", "off"),
    "local",
    "Who vouches for our names: an authority of our own, a public one (RFC 8555), or a proxy in front of us.",
  ),
  tlsPort: key(
    "server",
    whole(0, 65_535),
    8443,
    "Port the TLS server listens on; 0 takes a free one. Domains that are not set carry it.",
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
    "Where tls_mode = acme asks for certificates.",
  ),
  acmeEmail: key("server", optional(email), null, "Whom the certificate authority writes to."),
  publicUrl: key(
    "server",
    optional(url),
    null,
    "Address callers reach the server by, where it is not the loopback one.",
  ),
  metricsLoopback: key(
    "server",
    flag,
    false,
    "Serve GET /metrics to callers on this host without an operator's token.",
  ),
  logLevel: key(
    "server",
    oneOf("debug", "info", "warn", "error", "silent"),
    "info",
    "Least important line that is logged.",
  ),
  logFormat: key(
    "server",
    oneOf("json", "pretty"),
    "json",
    "One JSON object per line, or lines for a person.",
  ),
  otlpEndpoint: key(
    "server",
    optional(baseAddress),
    null,
    "Where runs of agents are told of as traces: an OpenTelemetry collector that takes OTLP over HTTP, without its /v1/traces. Off where it is not set.",
  ),
  otlpHeaders: key("server", optional(headers), null, "What otlp_endpoint wants to be sent, such as a key.", {
    secret: true,
  }),
  otlpContent: key("server", flag, false, "Traces hold what models and tools were told and said as well."),
  shutdownGraceSeconds: key(
    "server",
    whole(0, 3600),
    10,
    "How long running requests and jobs may take to end at a shutdown.",
  ),
  secretsKey: key(
    "server",
    optional(secretsKey),
    null,
    "Key of the secrets at rest; <data>/secrets.key, made at first start, where it is not set.",
    { secret: true },
  ),

  databaseUrl: key(
    "database",
    optional(databaseUrl),
    null,
    "PostgreSQL 15 or newer to use; without it the server runs its own under <data>/postgres.",
    { secret: true, alias: "DATABASE_URL" },
  ),
  databaseConnections: key(
    "database",
    whole(4, 1000),
    20,
    "Most connections to PostgreSQL for requests and jobs; upkeep has up to five more of its own.",
  ),

  runtime: key(
    "machines",
    oneOf("gvisor", "fake"),
    "gvisor",
    "What isolates machines; fake runs nothing and is for tests.",
  ),
  allowFakeRuntime: key("machines", flag, false, "Must be on for runtime = fake."),
  killFile: key(
    "machines",
    optional(text),
    null,
    "For tests: the server ends by SIGKILL at the named point that stands in this file.",
  ),
  runscPlatform: key(
    "machines",
    oneOf("auto", "systrap", "kvm"),
    "auto",
    "How gVisor intercepts system calls.",
  ),
  runscPath: key(
    "machines",
    optional(path),
    null,
    "The runsc for new sandboxes; unset: the one on PATH. A paused sandbox keeps the version that wrote it.",
  ),
  runcPath: key(
    "machines",
    optional(path),
    null,
    "Path of the runc for apps and build steps. Default: the one on PATH for apps, the one in /usr for builds.",
  ),
  buildahPath: key(
    "machines",
    optional(path),
    null,
    "Path of the buildah for builds. Default: the one in /usr.",
  ),
  instance: key(
    "machines",
    or("auto", whole(0, 63)),
    null,
    "Number that keeps several servers on one host apart: addresses, network and cgroup names.",
  ),
  regions: key(
    "machines",
    regions,
    Object.freeze(["eu-1=This host"]),
    "Regions callers may choose, the default one first; a directory is where its volumes lie, <data>/volumes otherwise.",
  ),
  poolTemplates: key(
    "machines",
    or("auto", list),
    null,
    "Templates that keep warm machines; auto: debian-12, and one machine of code-interpreter from 8 GiB of memory.",
  ),
  poolSize: key("machines", whole(0, 100), 2, "Warm machines kept per pool template, at least."),
  poolMax: key("machines", whole(0, 100), 8, "Warm machines a busy pool template grows to."),
  prepareTemplates: key(
    "machines",
    or("all", list),
    null,
    "Templates made ahead of time; the others on first use.",
  ),
  prepareImages: key(
    "machines",
    groupsToPrepare,
    [],
    "Images to make ahead of time, after the templates: images of databases, and bases of functions and of apps without a Dockerfile. Other images are made on first use, which takes minutes.",
  ),
  memoryOvercommit: key(
    "machines",
    decimal(0.1, 10),
    1.5,
    "Memory promised to machines over the host's memory.",
  ),
  cpuOvercommit: key("machines", decimal(0.1, 100), 16, "Cores promised to machines over the host's cores."),
  maxMachines: key("machines", whole(1, 10_000), 500, "Machines this host holds at once."),
  diskReserveGb: key(
    "machines",
    decimal(0, 10_000),
    1,
    "Disk that is left free: below this no machine is started, and no volume moved there.",
  ),
  suspensionGraceSeconds: key(
    "machines",
    whole(0, 31 * 24 * 3600),
    0,
    "Seconds between a workspace's suspension and the freeze of its machines. They are thawed when it ends.",
  ),
  machineDiskGb: key("machines", whole(1, 1000), 10, "What one machine may write on its disk."),
  gitConcurrency: key(
    "machines",
    whole(1, 1000),
    8,
    "Fetches from and pushes to repositories hosted here that are served at once; others wait.",
  ),
  gitTimeoutMinutes: key("machines", whole(1, 1440), 15, "How long one fetch, push or checkout may take."),
  gitPushMaxMb: key("machines", whole(1, 1_000_000), 1024, "Largest push to a repository hosted here."),
  gitRepositoryMaxMb: key("machines", whole(1, 1_000_000), 4096, "Largest repository hosted here."),
  gitCheckoutMaxMb: key(
    "machines",
    whole(1, 1_000_000),
    2048,
    "Largest checkout, and the most that is fetched for one.",
  ),
  buildConcurrency: key(
    "machines",
    whole(1, 100),
    2,
    "Builds of templates carried out at once, and again as many of apps; others wait.",
  ),
  buildCacheGb: key(
    "machines",
    decimal(0.1, 100_000),
    20,
    "What images of apps and what their builds keep for the next ones may take together before caches go.",
  ),
  buildTimeoutMinutes: key("machines", whole(1, 1440), 30, "How long the steps of one build may take."),
  buildMemoryMb: key("machines", whole(256, 1_000_000), 4096, "Memory a build has, at most."),
  buildCpus: key("machines", decimal(0.1, 64), 2, "Cores a build has."),

  deployConcurrency: key(
    "machines",
    whole(1, 100),
    4,
    "Deployments carried out at once that build something; others wait.",
  ),
  deployTimeoutMinutes: key(
    "machines",
    whole(1, 1440),
    60,
    "How long one deployment may take, its wait for a builder included.",
  ),
  appStartSeconds: key("machines", whole(1, 600), 60, "How long an app may take until it answers."),
  appDrainSeconds: key(
    "machines",
    whole(0, 3600),
    30,
    "How long requests that an app had begun before a deployment may still take.",
  ),
  appFrozenMinutes: key(
    "machines",
    whole(0, 10_000),
    15,
    "How long an app that is asleep keeps its memory, and wakes at once.",
  ),
  functionFrozenMinutes: key(
    "machines",
    whole(0, 10_000),
    10,
    "How long a function that nobody asks keeps its memory, and wakes at once; then it is on disk.",
  ),

  backupsStore: key(
    "backups",
    oneOf("directory", "s3"),
    "directory",
    "Where backups of add-ons are kept: on this host, or in an object store that speaks S3.",
  ),
  backupsDirectory: key(
    "backups",
    optional(path),
    null,
    "Where backups_store = directory keeps them; <data>/backups where it is not set.",
  ),
  backupsS3Endpoint: key(
    "backups",
    optional(url),
    null,
    "Address of the object store; downloads of backups lead there as well.",
  ),
  backupsS3Bucket: key("backups", optional(bucket), null, "Its bucket, which has to be there."),
  backupsS3Region: key(
    "backups",
    text,
    "us-east-1",
    "The region requests to the object store are signed for.",
  ),
  backupsS3AccessKey: key("backups", optional(text), null, "Name of the key to the object store."),
  backupsS3SecretKey: key("backups", optional(text), null, "The key to the object store.", { secret: true }),
  backupsS3Prefix: key(
    "backups",
    blobPrefix,
    "kontor/",
    "What the names of backups begin with in the bucket; another for each installation.",
  ),
  backupsS3VirtualHosted: key(
    "backups",
    flag,
    false,
    "The bucket is part of the object store's host name, and not of the path.",
  ),

  uplink: key(
    "network",
    or("auto", text),
    null,
    "Interface machines reach the outside through; auto: the default route's.",
  ),
  dnsServers: key("network", or("auto", list), null, "Resolvers for machines; auto: the host's own."),
  defaultEgressAllowlist: key(
    "network",
    egressHosts,
    Object.freeze([AUTO]),
    "Hosts a restricted machine may reach; auto: where this host's apt, npm, pip and git get packages from, and code forges.",
  ),
  allowPrivateHosts: key(
    "network",
    hosts,
    Object.freeze([]),
    "Private hosts that addresses given by callers may lead to: webhooks, models, forges on the LAN.",
  ),
  gitCaFile: key(
    "network",
    optional(path),
    null,
    "Authorities https repositories are checked against; the host's own where it is not set.",
  ),
  gitKnownHosts: key(
    "network",
    optional(path),
    null,
    "Host keys of ssh repositories (known_hosts), no others are trusted; the first one seen where it is not set.",
  ),
  appsDomain: key("network", domain, "apps.localhost:8443", "Deployed apps are served under this name."),
  previewDomain: key(
    "network",
    domain,
    "localhost:8443",
    "Previews of sandbox ports are served under this name.",
  ),

  addonsHost: key(
    "network",
    text,
    "127.0.0.1",
    "Address public add-ons listen on; where it is not a loopback one, they are reached by TLS alone.",
  ),
  addonsPorts: key("network", ports, "15400-15499", "Ports of public add-ons, one each."),
  addonsPublicName: key(
    "network",
    optional(domain),
    null,
    "Host name in public add-ons' addresses; addons_host where it is not set.",
  ),

  operatorEmail: key(
    "accounts",
    email,
    "operator@kontor.local",
    "Sign-in name of the account made at first start.",
  ),

  activityRetentionDays: key(
    "accounts",
    or("forever", whole(1, 36_500)),
    365,
    "Days after which entries of the audit log are removed, or forever.",
  ),
  activityAccessRetentionDays: key(
    "accounts",
    or("forever", whole(1, 36_500)),
    90,
    "Days that the audit log keeps entries of reads and runs, or forever. activity_retention_days limits them too.",
  ),

  rateLimits: key("limits", flag, true, "Requests per token are limited."),
  rateLimitPlatformStarter: key("limits", whole(1, 1e6), 60, "Platform requests per minute, plan starter."),
  rateLimitPlatformPro: key("limits", whole(1, 1e6), 100, "Platform requests per minute, plan pro."),
  streamsStarter: key(
    "limits",
    whole(2, 1e6),
    100,
    "Streams open at once, plan starter; half for one token.",
  ),
  streamsPro: key("limits", whole(2, 1e6), 200, "Streams open at once, plan pro; half for one token."),
  streamsTeam: key("limits", whole(2, 1e6), 500, "Streams open at once, plan team; half for one token."),
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
  rateLimitSandboxCreatesBurst: key("limits", whole(1, 1e6), 100, "Sandboxes created at once."),
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
  maxSandboxesFree: key("limits", whole(0, 10_000), 5, "Sandboxes running at once, tier free."),
  maxSandboxesPayg: key("limits", whole(0, 10_000), 50, "Sandboxes running at once, tier payg."),
  maxSandboxesEnterprise: key("limits", whole(0, 10_000), 500, "Sandboxes running at once, tier enterprise."),
};

type Keys = typeof keys;
export type ConfigKey = keyof Keys;
export type Config = { readonly [K in ConfigKey]: Keys[K] extends Key<infer T> ? T : never };
export type ConfigSource = "default" | "file" | "environment" | "flag";

/** Every complaint about the configuration at once, each naming its key. */
export class ConfigError extends Error {
  override readonly name = "ConfigError";
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join("\n"));
    this.problems = problems;
  }
}

/** Variables of clients. A shell with these may also start a server. */
const clientVariables = ["KONTOR_URL", "KONTOR_TOKEN"];

/** True for an environment variable that sets a server setting. */
export const isSetting = (variable: string): boolean =>
  variable.startsWith("KONTOR_") && !clientVariables.includes(variable);

/** Where each value of a configuration came from; kept aside, so that a Config is nothing but its values. */
const sourcesOf = new WeakMap<Config, Record<string, ConfigSource>>();

/** Reads the server's own configuration, with the settings of the last `kontor restart`. Throws a `ConfigError`. */
export const loadServerConfig = (): Config => loadConfig({ env: withRestartSettings(process.env) });

/**
 * Reads the configuration. `dataDir` and `overrides` are what flags said (`overrides` as text, keys as in Config).
 * Throws a `ConfigError`.
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
      // An empty variable is one a shell script left out, not a value.
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

  // Names that nobody chose carry the port that somebody did.
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

/** What each key may be, is, and comes from, for a person. Secrets are `(set)`. */
export interface ConfigRow {
  group: string;
  /** As in the file. */
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
 * The sockets that were bound before this process was started and outlive it, plain HTTP first and then TLS, by their
 * descriptors: `kontor-shim keep` and systemd hand them down (sd_listen_fds(3)). None where nobody does.
 */
export function inheritedSockets(env: NodeJS.ProcessEnv = process.env, pid = process.pid): number[] {
  if (env["LISTEN_PID"] !== String(pid)) return [];
  const count = Number(env["LISTEN_FDS"]);
  return Number.isInteger(count)
    ? Array.from({ length: Math.min(Math.max(count, 0), 2) }, (_, n) => 3 + n)
    : [];
}

/** The address that always works on this host: plain loopback. */
export function baseUrl(config: Pick<Config, "port">): string {
  return `http://127.0.0.1:${config.port}`;
}

/** A domain as names are compared: without the port that addresses carry. */
export function hostname(domain: string): string {
  return domain.replace(/:\d+$/, "");
}

const configKeys = Object.keys(keys) as ConfigKey[];

function contradictions(config: Config): string[] {
  const problems: string[] = [];
  if (config.runtime === "fake" && !config.allowFakeRuntime) {
    problems.push("KONTOR_RUNTIME: fake isolates nothing; it needs KONTOR_ALLOW_FAKE_RUNTIME=1");
  }
  if (config.poolMax < config.poolSize) {
    problems.push(`KONTOR_POOL_MAX: expected at least pool_size (${config.poolSize}), got ${config.poolMax}`);
  }
  if (!isLoopback(config.addonsHost) && config.tlsMode === "off") {
    problems.push(
      `KONTOR_ADDONS_HOST: add-ons on ${config.addonsHost} are reached by TLS, which tls_mode = off has no certificates for`,
    );
  }
  for (const name of ["previewDomain", "appsDomain"] as const) {
    const host = hostname(config[name]);
    if (config.tlsMode === "acme" && (!host.includes(".") || host.endsWith(".localhost"))) {
      problems.push(`KONTOR_${snake(name).toUpperCase()}: tls_mode = acme needs a public name, not ${host}`);
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
        problems.push(`KONTOR_${snake(name).toUpperCase()}: backups_store = s3 needs it`);
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

/** The text a TOML value would be in the environment; a table becomes text that no kind accepts. */
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
