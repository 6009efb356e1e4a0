/**
 * PostgreSQL as Debian packages it, with its files in `/persist/postgres`. The superuser is the machine's `postgres`
 * account, which connects over a socket inside the machine. The add-on's user owns one database and may create trusted
 * extensions in it. This user can neither read files nor create roles. The machine receives the SCRAM verifier (RFC
 * 5803), never the password.
 */
import { createHash, createHmac, pbkdf2Sync, randomBytes } from "node:crypto";
import { constants } from "node:os";
import type { Guest } from "#machines/host/guest.ts";
import { type Engine, heldBackBytes, readRoom } from "./engine.ts";
import { runInside } from "./run-inside.ts";
import type { Extent } from "../sizes.ts";

const programs = "/usr/local/lib/kontor-addon";
const settingsDirectory = "/etc/kontor-addon";
const bin = "/usr/lib/postgresql/15/bin";
const mib = 1024 ** 2;

/**
 * Time limit of initdb on a slow disk. The first health check has its own limit, and waits for the replay of the log.
 */
const prepareWithinMs = 120_000;
const healthWithinMs = 10_000;
const sqlWithinMs = 30_000;

export const postgres: Engine = {
  kind: "postgres",
  version: "15",
  image: "postgres-15",
  port: 5432,
  variable: "DATABASE_URL",
  username: "kontor",
  database: "kontor",
  stopSignal: constants.signals.SIGINT,
  command: {
    argv: [
      `${bin}/postgres`,
      "-D",
      "/persist/postgres",
      "-c",
      `config_file=${settingsDirectory}/postgresql.conf`,
    ],
    user: "postgres",
    cwd: "/",
  },

  async prepare(guest, instance) {
    const { username, database, extent, isMade, isThrowaway } = instance;
    await write(guest, "postgresql.conf", settings(extent, { isThrowaway }));
    await write(guest, "pg_hba.conf", access(username, database ?? username));
    const argv = ["/bin/sh", `${programs}/prepare`, isMade ? "kept" : "new", String(heldBackBytes(extent))];
    const room = readRoom(await runInside(guest, { argv, timeoutMs: prepareWithinMs }));
    await write(guest, "room.conf", readOnly(room.isFull));
    return room;
  },

  async health(guest, { extent }) {
    const argv = ["/bin/sh", `${programs}/health`, String(heldBackBytes(extent))];
    return readRoom(await runInside(guest, { argv, timeoutMs: healthWithinMs }));
  },

  async onDiskChange(guest, { isFull }) {
    await write(guest, "room.conf", readOnly(isFull));
    await sql(guest, "postgres", "select pg_reload_conf();");
  },

  async ensureAccess(guest, { username, database, password }) {
    const role = identifier(username);
    const owned = identifier(database ?? username);
    await sql(
      guest,
      "postgres",
      `select 'create role ${role}' where not exists (select from pg_roles where rolname = '${role}') \\gexec
       alter role ${role} with login nosuperuser nocreatedb nocreaterole noreplication password '${scramVerifier(password)}';
       grant pg_read_all_stats, pg_signal_backend to ${role};
       select 'create database ${owned} owner ${role}'
         where not exists (select from pg_database where datname = '${owned}') \\gexec
       revoke connect on database postgres, template1 from public;
       revoke connect on database ${owned} from public;`,
    );
    // pg_stat_statements is the only untrusted extension that users request. The extension shows all statements of the
    // cluster, which has one user.
    await sql(guest, database ?? username, "create extension if not exists pg_stat_statements;");
  },

  url({ host, port, isTls }, { username, password, database }) {
    const query = isTls ? "?sslmode=require" : "";
    return `postgresql://${username}:${password}@${host}:${port}/${database}${query}`;
  },
};

/**
 * Returns the settings for a size. PostgreSQL's own cache gets a quarter of the memory, and sorting sessions share half
 * of it.
 */
export function settings(
  { memoryBytes, diskBytes, vcpus }: Extent,
  { isThrowaway = false }: { isThrowaway?: boolean | undefined } = {},
): string {
  const memoryMb = memoryBytes / mib;
  const diskMb = diskBytes / mib;
  const connections = Math.max(20, Math.min(200, Math.floor(memoryMb / 10)));
  const workers = Math.max(1, Math.floor(vcpus));
  return lines({
    listen_addresses: "'*'",
    port: "5432",
    unix_socket_directories: "'/run/postgresql'",
    hba_file: `'${settingsDirectory}/pg_hba.conf'`,
    max_connections: String(connections),
    superuser_reserved_connections: "3",
    shared_buffers: `${memoryMb / 4}MB`,
    effective_cache_size: `${Math.floor(memoryMb * 0.6)}MB`,
    work_mem: `${Math.max(1, Math.floor((memoryMb * 0.5) / connections))}MB`,
    maintenance_work_mem: `${memoryMb / 16}MB`,
    autovacuum_max_workers: "2",
    max_worker_processes: String(workers + 4),
    max_parallel_workers: String(workers),
    max_parallel_workers_per_gather: String(Math.min(2, workers)),
    jit: "off",
    // The WAL and the data share a disk.
    max_wal_size: `${Math.min(1024, diskMb / 8)}MB`,
    min_wal_size: "48MB",
    // The value `on` means pglz, which makes the first read of a newly loaded table six times slower.
    wal_compression: "lz4",
    checkpoint_timeout: "'15min'",
    checkpoint_completion_target: "0.9",
    temp_file_limit: `${diskMb / 4}MB`,
    password_encryption: "'scram-sha-256'",
    shared_preload_libraries: "'pg_stat_statements'",
    // Keep-alive packets detect a vanished client within minutes.
    tcp_keepalives_idle: "60",
    tcp_keepalives_interval: "15",
    tcp_keepalives_count: "4",
    log_destination: "'stderr'",
    log_line_prefix: "''",
    // Failed statements may contain secrets, so they are not logged.
    log_min_error_statement: "panic",
    timezone: "'UTC'",
    log_timezone: "'UTC'",
    ...(isThrowaway ? throwawaySettings(memoryMb) : {}),
    include: `'${settingsDirectory}/room.conf'`,
  });
}

/**
 * Returns the settings of a throwaway instance, which is loaded and compared once. With these settings, loading takes a
 * quarter of the time. No data survives a crash, and a small WAL is overwritten in memory before it reaches the disk.
 */
function throwawaySettings(memoryMb: number): Record<string, string> {
  return {
    fsync: "off",
    full_page_writes: "off",
    synchronous_commit: "off",
    wal_level: "minimal",
    max_wal_senders: "0",
    max_wal_size: `${Math.min(256, memoryMb)}MB`,
    autovacuum: "off",
    maintenance_work_mem: `${memoryMb / 4}MB`,
  };
}

/**
 * Returns the setting that makes the database read-only on a full disk. The owner can override it per session to delete
 * data (docs/addons.md).
 */
function readOnly(isFull: boolean): string {
  return lines({ default_transaction_read_only: isFull ? "on" : "off" });
}

function access(username: string, database: string): string {
  return [
    "local all postgres peer",
    `host ${identifier(database)} ${identifier(username)} all scram-sha-256`,
    "",
  ].join("\n");
}

/** Returns the SCRAM verifier that PostgreSQL stores in place of a password (`pg_authid.rolpassword`, RFC 5803). */
export function scramVerifier(password: string, salt = randomBytes(16), iterations = 4096): string {
  const salted = pbkdf2Sync(password, salt, iterations, 32, "sha256");
  const hmac = (text: string) => createHmac("sha256", salted).update(text).digest();
  const stored = createHash("sha256").update(hmac("Client Key")).digest();
  const base64 = [salt, stored, hmac("Server Key")].map((bytes) => bytes.toString("base64"));
  return `SCRAM-SHA-256$${iterations}:${base64[0]}$${base64[1]}:${base64[2]}`;
}

async function sql(guest: Guest, database: string, text: string): Promise<string> {
  return runInside(guest, {
    argv: [`${bin}/psql`, "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", "-"],
    user: "postgres",
    stdin: `set default_transaction_read_only = off;\n${text}`,
    timeoutMs: sqlWithinMs,
  });
}

/** Quotes a name of ours, which has only letters, digits and underscores. Any other character is a bug. */
function identifier(name: string): string {
  if (!/^[a-z][a-z0-9_]{0,62}$/.test(name))
    throw new Error(`${name} is not a valid name of a role or database`);
  return name;
}

function lines(settings: Record<string, string>): string {
  return Object.entries(settings)
    .map(([name, value]) => `${name} = ${value}\n`)
    .join("");
}

async function write(guest: Guest, name: string, text: string): Promise<void> {
  await guest.writeFile(`${settingsDirectory}/${name}`, Buffer.from(text), { mode: 0o644, roots: ["/etc"] });
}
