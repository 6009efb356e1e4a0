/**
 * The connection to PostgreSQL, and what a table looks like from TypeScript.
 *
 * `Database` is put together from each folder's `tables.ts`: a folder that owns tables exports one interface of
 * them (`table name → columns`) and adds it to the `extends` list below. Nothing else about a folder is known here.
 *
 * How values are read is decided once, here: `bigint` is a number, and one past 2^53 is an error instead of a
 * wrong number; `timestamptz` is a Date; `numeric` stays text; `json` is parsed. A JSON value is written as text
 * (`JSON.stringify`), because pg would send an array as a PostgreSQL array.
 */
import { Kysely, PostgresDialect, type Transaction as KyselyTransaction } from "kysely";
import pg from "pg";
import type { AccountsTables } from "#accounts/tables.ts";
import type { AgentApprovalTables } from "#agent/approvals/tables.ts";
import type { AgentTables } from "#agent/agents/tables.ts";
import type { ModelCredentialTables } from "#agent/credentials/tables.ts";
import type { AgentCallTables } from "#agent/calls/tables.ts";
import type { AgentMemoryTables } from "#agent/memory/tables.ts";
import type { AgentConnectionTables } from "#agent/connections/tables.ts";
import type { AgentRunTables } from "#agent/runs/tables.ts";
import type { AgentSessionTables } from "#agent/sessions/tables.ts";
import type { AgentScheduleTables } from "#agent/schedules/tables.ts";
import type { AgentToolsetTables } from "#agent/toolsets/tables.ts";
import type { AgentMachineTables } from "#agent/vm/tables.ts";
import type { AgentWebhookTables } from "#agent/webhooks/tables.ts";
import type { BuildTables } from "#builds/tables.ts";
import type { JobsTables } from "#jobs/tables.ts";
import type { MachinesTables } from "#machines/tables.ts";
import type { AddonTables } from "#platform/addons/tables.ts";
import type { AppTables } from "#platform/apps/tables.ts";
import type { BackupTables } from "#platform/backups/tables.ts";
import type { DeploymentTables } from "#platform/deployments/tables.ts";
import type { EnvironmentTables } from "#platform/environments/tables.ts";
import type { FunctionTables } from "#platform/functions/tables.ts";
import type { GitTables } from "#platform/git/tables.ts";
import type { GroupTables } from "#platform/groups/tables.ts";
import type { MetricTables } from "#platform/metrics/tables.ts";
import type { ProjectTables } from "#platform/projects/tables.ts";
import type { CommandTables } from "#sandbox/commands/tables.ts";
import type { EventTables } from "#sandbox/events/tables.ts";
import type { SandboxTables } from "#sandbox/sandboxes/tables.ts";
import type { SnapshotTables } from "#sandbox/snapshots/tables.ts";
import type { VolumeTables } from "#sandbox/volumes/tables.ts";
import type { TemplateTables } from "#sandbox/templates/tables.ts";
import type { WebhookTables } from "#sandbox/webhooks/tables.ts";
import { preparingClient } from "./prepared.ts";

export interface Database
  extends
    AccountsTables,
    BuildTables,
    JobsTables,
    MachinesTables,
    GroupTables,
    ProjectTables,
    EnvironmentTables,
    DeploymentTables,
    GitTables,
    AppTables,
    FunctionTables,
    AddonTables,
    BackupTables,
    MetricTables,
    SandboxTables,
    TemplateTables,
    SnapshotTables,
    CommandTables,
    EventTables,
    VolumeTables,
    WebhookTables,
    AgentTables,
    AgentSessionTables,
    AgentRunTables,
    AgentCallTables,
    AgentMemoryTables,
    AgentApprovalTables,
    AgentToolsetTables,
    AgentMachineTables,
    AgentScheduleTables,
    AgentWebhookTables,
    AgentConnectionTables,
    ModelCredentialTables {}

/** The database, or a transaction of it: whatever takes a `Db` runs in the transaction it is given. */
export type Db = Kysely<Database>;
export type Transaction = KyselyTransaction<Database>;

/** Where PostgreSQL is: a `postgres://` address, or the socket directory of the embedded one. */
export type Connection = { url: string } | { socketDirectory: string; user: string; database: string };

export interface OpenDatabase {
  db: Db;
  /** Separate connections for heartbeats, leases and deadlines, which must continue while requests hold all others. */
  upkeep: Db;
  /** For graphile-worker, which shares it. */
  pool: pg.Pool;
  close(): Promise<void>;
}

const upkeepConnections = 4;

/**
 * Opens a pool of at most `maxConnections`, and a small one for upkeep. `onError` is called for idle connections that
 * broke; the pool replaces them.
 */
export function openDatabase(
  connection: Connection,
  options: { maxConnections: number; onError: (error: Error) => void },
): OpenDatabase {
  const open = (max: number) => {
    const pool = new pg.Pool({
      ...clientOptions(connection),
      Client: preparingClient(),
      max,
      // An exhausted pool rejects requests instead of delaying them for ever.
      connectionTimeoutMillis: 10_000,
    });
    survivePoolErrors(pool, options.onError);
    return { pool, db: new Kysely<Database>({ dialect: new PostgresDialect({ pool }) }) };
  };
  const { pool, db } = open(options.maxConnections);
  const upkeep = open(upkeepConnections).db;
  const close = async () => {
    await Promise.all([db.destroy(), upkeep.destroy()]);
  };
  return { db, upkeep, pool, close };
}

/**
 * Without listeners a connection that breaks (a restart of PostgreSQL) ends the whole process: an idle one through
 * the pool, one in use through the client, whose query fails as well and says the same to whoever asked.
 */
export function survivePoolErrors(pool: pg.Pool, onError: (error: Error) => void): void {
  pool.on("error", onError);
  pool.on("connect", (client) => client.on("error", () => {}));
}

/** Options of one `pg` client to the same place, with the same reading of values. */
export function clientOptions(connection: Connection): pg.ClientConfig {
  const place =
    "url" in connection
      ? { connectionString: connection.url }
      : { host: connection.socketDirectory, user: connection.user, database: connection.database };
  return { ...place, application_name: "kontor", types: { getTypeParser } };
}

/** Runs `work` in a transaction; inside one already it joins it, so that verbs can call one another. */
export function transaction<T>(db: Db, work: (tx: Transaction) => Promise<T>): Promise<T> {
  return db.isTransaction ? work(db as Transaction) : db.transaction().execute(work);
}

const int8 = pg.types.builtins.INT8;

// pg's own type says the parser's format decides its input; only the text format is ever used here.
const getTypeParser: NonNullable<pg.CustomTypesConfig["getTypeParser"]> = ((oid: number, format?: "text") =>
  oid === int8 ? parseBigint : pg.types.getTypeParser(oid, format)) as never;

function parseBigint(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError(`${text} is past what a number holds exactly`);
  return value;
}
