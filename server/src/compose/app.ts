/** Opens everything that the APIs build on: data directory, database, secrets, job queue, egress proxy and machines. */
import { mkdirSync } from "node:fs";
import { run } from "@kontor/runtime/exec.ts";
import { hostMirrors } from "@kontor/runtime/rootfs/sources.ts";
import type { Logger } from "pino";
import { sealClearHeaders } from "#agent/toolsets/calls/headers.ts";
import type { App } from "#app.ts";
import { allowlistOf as buildAllowlist } from "#builds/builds.ts";
import type { Config } from "#config.ts";
import { type Connection, openDatabase } from "#db/db.ts";
import { ensureEmbedded } from "#db/embedded/ensure-embedded.ts";
import { refuseUnfinishedLoad, refuseUnfinishedRestore } from "#db/load.ts";
import { migrate } from "#db/migrate.ts";
import { openSecrets } from "#db/secrets.ts";
import { becomeSoleServer } from "#db/sole-server.ts";
import { finishRollback } from "#db/upgrade.ts";
import { expandAllowlist } from "#egress/defaults.ts";
import { Egress } from "#egress/egress.ts";
import { openJobs } from "#jobs/jobs.ts";
import { systemClock } from "#lib/clock.ts";
import { ensureHostId } from "#lib/host-id.ts";
import { Denials } from "#machines/denials.ts";
import { openMachines } from "#machines/open.ts";
import { allowlistOf } from "#sandbox/sandboxes/allowlist.ts";
import type { Database } from "#schema.ts";
import { findServer, version } from "./installation.ts";

export interface OpenedApp {
  app: App;
  /**
   * The same app with separate database connections, so that leases are extended and deadlines kept on a busy server.
   */
  caretaker: App;
  hostId: string;
}

/** `running` closes everything that this function opens, in reverse order. */
export async function openApp(
  config: Config,
  log: Logger,
  running: AsyncDisposableStack,
): Promise<OpenedApp> {
  // PostgreSQL's account must be able to enter the directory, and other accounts must not be able to list it.
  mkdirSync(config.dataDir, { recursive: true, mode: 0o711 });
  refuseUnfinishedRestore(config.dataDir);
  const hostId = ensureHostId(config.dataDir);
  const defaultEgressAllowlist = readDefaultAllowlist(config);
  const connection = await connect(config, hostId, log, running);

  await refuseUnfinishedLoad(connection);
  const migrated = await migrate(connection);
  if (migrated.length > 0) log.info({ migrated }, "database migrated");
  const database = openDatabase<Database>(connection, {
    maxConnections: config.databaseConnections,
    onError: (error) => log.warn({ error }, "a database connection broke; the pool opens a new one"),
  });
  running.defer(() => database.close());
  const { db, upkeep, pool } = database;
  const secrets = await openSecrets(db, { dataDir: config.dataDir, configured: config.secretsKey });
  await sealClearHeaders({ db: upkeep, secrets });

  const jobs = await openJobs({ db: upkeep, pool, log, hostId, version: version() });
  running.defer(() => jobs.stop(0));

  const denials = new Denials({ clock: systemClock });
  const egress = new Egress({
    allowlistOf: async (machine) => {
      const defaults = await defaultEgressAllowlist;
      return (await allowlistOf(db, machine, defaults)) ?? buildAllowlist(db, machine, defaults);
    },
    dnsServers: config.dnsServers,
    privateHosts: config.allowPrivateHosts,
    denied: (machine, denied) => denials.add(machine, denied),
    log: (event, fields) => log.debug(fields, event),
  });
  const machines = await openMachines({ config, db, clock: systemClock, log, egress, denials });
  running.defer(() => machines.close());
  const known = { ...config, defaultEgressAllowlist: await defaultEgressAllowlist };
  const app: App = { config: known, db, jobs, machines, secrets, clock: systemClock, log };
  return { app, caretaker: { ...app, db: upkeep }, hostId };
}

/**
 * Reads the package hosts from programs of the host. The reading takes a second and runs while the database starts.
 */
function readDefaultAllowlist(config: Config): Promise<readonly string[]> {
  return expandAllowlist(config.defaultEgressAllowlist, {
    // A program that hangs delays the start by at most five seconds, and its hosts are missing from the list.
    run: async (argv) => (await run(argv, { cwd: "/", timeoutMs: 5_000 })).stdout,
    aptArchives: async () => Object.values(await hostMirrors()).filter((address) => address !== null),
  });
}

/** Starts or finds PostgreSQL, finishes a rollback, and takes the lock of the data directory. */
async function connect(
  config: Config,
  hostId: string,
  log: Logger,
  running: AsyncDisposableStack,
): Promise<Connection> {
  const connection = config.databaseUrl
    ? { url: config.databaseUrl }
    : (await ensureEmbedded(config.dataDir)).connection;
  const rolledBack = await finishRollback(connection, { dataDir: config.dataDir, hostId });
  if (rolledBack) log.warn({ database: rolledBack }, "an upgrade was rolled back");
  const sole = await becomeSoleServer(connection, hostId, () => {
    log.fatal("another server took over this data directory; this server stops");
    process.kill(process.pid, "SIGTERM");
  });
  if (!sole) throw new Error(`a server already serves ${config.dataDir}${findServer(config.dataDir)}`);
  running.defer(() => sole.release());
  return connection;
}
