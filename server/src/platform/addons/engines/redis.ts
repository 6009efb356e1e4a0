/**
 * Redis as Debian packages it, with its files in `/persist/redis`, synced every second. The add-on's user may run
 * commands on its data, but none that concern the server. A second user, `admin`, has a password that is generated at
 * each start. Only the machine's root can read the file with it. `admin PING` in `/usr/local/lib/kontor-addon/`
 * connects as that user over `/run/redis/redis.sock`. The settings contain hashes, not passwords.
 */
import { createHash } from "node:crypto";
import { constants } from "node:os";
import { randomText } from "#lib/ids.ts";
import type { Guest } from "#machines/host/guest.ts";
import { type Engine, heldBackBytes, readRoom } from "./engine.ts";
import { runInside } from "./run-inside.ts";
import { alphabet } from "../access/password.ts";
import type { Extent } from "../sizes.ts";

const programs = "/usr/local/lib/kontor-addon";
const settingsDirectory = "/etc/kontor-addon";
const mib = 1024 ** 2;

const prepareWithinMs = 30_000;
const healthWithinMs = 10_000;

/** Policies for a write when the memory is full. */
export const evictionPolicies = [
  "noeviction",
  "allkeys-lru",
  "allkeys-lfu",
  "allkeys-random",
  "volatile-lru",
  "volatile-lfu",
  "volatile-random",
  "volatile-ttl",
] as const;

/** Commands of Redis' category `dangerous` that concern only the client's own data and connections, and are allowed. */
const allowed = [
  "client",
  "flushall",
  "flushdb",
  "info",
  "keys",
  "lastsave",
  "latency",
  "monitor",
  "restore",
  "role",
  "slowlog",
  "sort",
  "swapdb",
];
/** Commands that would block the server for all clients, and are refused. */
const refused = ["client|pause", "client|no-evict"];

export const redis: Engine = {
  kind: "redis",
  version: "7",
  image: "redis-7",
  port: 6379,
  variable: "REDIS_URL",
  username: "kontor",
  database: null,
  stopSignal: constants.signals.SIGTERM,
  command: {
    argv: ["/usr/bin/redis-server", `${settingsDirectory}/redis.conf`],
    user: "redis",
    cwd: "/",
  },

  async prepare(guest, { extent, username, password, options, isMade }) {
    const admin = randomText(alphabet, 40);
    await write(guest, "admin", admin, 0o600);
    await write(guest, "users.acl", users(username, password, admin), 0o644);
    await write(guest, "redis.conf", settings(extent, options), 0o644);
    const argv = ["/bin/sh", `${programs}/prepare`, isMade ? "kept" : "new", String(heldBackBytes(extent))];
    return readRoom(await runInside(guest, { argv, timeoutMs: prepareWithinMs }));
  },

  async health(guest, { extent }) {
    const argv = ["/bin/sh", `${programs}/health`, String(heldBackBytes(extent))];
    return readRoom(await runInside(guest, { argv, timeoutMs: healthWithinMs }));
  },

  // Redis itself refuses writes while it cannot persist them, so this function has no work.
  onDiskChange: async () => {},

  // The settings contain the users, so this function has no work.
  ensureAccess: async () => {},

  url({ host, port, isTls }, { username, password }) {
    return `redis${isTls ? "s" : ""}://${username}:${password}@${host}:${port}`;
  },
};

/**
 * Returns the settings for a size. Data may use six tenths of the memory; copy-on-write during a snapshot needs the
 * rest.
 */
export function settings({ memoryBytes }: Extent, options: Record<string, unknown> = {}): string {
  const policy = evictionPolicies.find((known) => known === options["maxmemory_policy"]) ?? "noeviction";
  return [
    "bind 0.0.0.0",
    "port 6379",
    // The default user is disabled, so every client needs a password.
    "protected-mode no",
    // Backups compare values of DEBUG DIGEST. The add-on's user may not run DEBUG.
    "enable-debug-command local",
    "unixsocket /run/redis/redis.sock",
    "unixsocketperm 700",
    `aclfile ${settingsDirectory}/users.acl`,
    "dir /persist/redis",
    "appendonly yes",
    "appendfsync everysec",
    "auto-aof-rewrite-min-size 16mb",
    "save 3600 1 300 1000",
    `maxmemory ${Math.floor((memoryBytes / mib) * 0.6)}mb`,
    `maxmemory-policy ${policy}`,
    `maxclients ${Math.max(100, Math.floor(memoryBytes / mib))}`,
    "tcp-keepalive 60",
    'logfile ""',
    "daemonize no",
    "",
  ].join("\n");
}

function users(username: string, password: string, admin: string): string {
  const may = [
    "+@all",
    "-@dangerous",
    ...allowed.map((command) => `+${command}`),
    ...refused.map((command) => `-${command}`),
  ];
  return [
    "user default off",
    `user admin on #${hash(admin)} ~* &* +@all`,
    `user ${username} on #${hash(password)} ~* &* ${may.join(" ")}`,
    "",
  ].join("\n");
}

function hash(password: string): string {
  return createHash("sha256").update(password).digest("hex");
}

async function write(guest: Guest, name: string, text: string, mode: number): Promise<void> {
  await guest.writeFile(`${settingsDirectory}/${name}`, Buffer.from(text), { mode, roots: ["/etc"] });
}
