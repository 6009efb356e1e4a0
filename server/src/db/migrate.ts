/**
 * Brings the schema up to date: `server/migrations/NNNN_name.sql` in order, each in one transaction together with
 * the row that says it ran. Several processes may start at once: one migrates, the others wait and find it done.
 *
 * A file that ran is history. When its text differs from what ran, the server refuses to start: the schema would
 * not be what the code was written against, and nobody would know.
 */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Logger, runMigrations } from "graphile-worker";
import pg from "pg";
import { clientOptions, type Connection, survivePoolErrors } from "./db.ts";

export interface Migration {
  name: string;
  sql: string;
}

export class MigrationError extends Error {
  override readonly name = "MigrationError";
}

/** Ours alone; pg_advisory_lock's number is shared by all users of a database. */
const migrationLock = 7_208_330_211;

const directory = join(import.meta.dirname, "../../migrations");

/** Answers the names of the files that ran now. Throws a `MigrationError`. */
export async function migrate(
  connection: Connection,
  migrations: readonly Migration[] = readMigrations(),
): Promise<string[]> {
  const pool = new pg.Pool({ ...clientOptions(connection), max: 2, connectionTimeoutMillis: 10_000 });
  survivePoolErrors(pool, () => {});
  try {
    const client = await pool.connect();
    try {
      await client.query("select pg_advisory_lock($1)", [migrationLock]);
      const ran = await applyMissing(client, migrations);
      // The tables of graphile-worker are its own; under the same lock, because its migrations race at first start.
      await runMigrations({ pgPool: pool, logger: new Logger(() => () => {}) });
      return ran;
    } finally {
      // Closing the session releases the lock, whatever state an error left it in.
      client.release(true);
    }
  } finally {
    await pool.end();
  }
}

export function readMigrations(from = directory): Migration[] {
  return readdirSync(from)
    .filter((name) => /^\d{4}_.+\.sql$/.test(name))
    .toSorted()
    .map((name) => ({ name, sql: readFileSync(join(from, name), "utf8") }));
}

async function applyMissing(client: pg.PoolClient, migrations: readonly Migration[]): Promise<string[]> {
  await client.query(`create table if not exists migrations (
    name text primary key, checksum text not null, applied_at timestamptz not null default now())`);
  const { rows } = await client.query<{ name: string; checksum: string }>(
    "select name, checksum from migrations",
  );
  const applied = new Map(rows.map(({ name, checksum }) => [name, checksum]));

  refuseOtherHistory(applied, migrations);
  const missing = migrations.filter(({ name }) => !applied.has(name));
  for (const migration of missing) await apply(client, migration);
  return missing.map(({ name }) => name);
}

/** Throws if a migration that ran is unknown to this code, or was changed since. `applied` maps names to checksums. */
export function refuseOtherHistory(
  applied: ReadonlyMap<string, string>,
  migrations: readonly Migration[],
): void {
  const unknown = [...applied.keys()].find((name) =>
    migrations.every((migration) => migration.name !== name),
  );
  if (unknown)
    throw new MigrationError(`the database has ${unknown}, which this server does not know: it is too old`);
  const changed = migrations.find(
    ({ name, sql }) => applied.has(name) && applied.get(name) !== checksum(sql),
  );
  if (changed)
    throw new MigrationError(`${changed.name} was changed after it ran; put it back and add a new file`);
}

async function apply(client: pg.PoolClient, { name, sql }: Migration): Promise<void> {
  await client.query("begin");
  try {
    // One string of many statements, so that PostgreSQL splits it, and reports a position in the file.
    await client.query(sql);
    await client.query("insert into migrations (name, checksum) values ($1, $2)", [name, checksum(sql)]);
    await client.query("commit");
  } catch (error) {
    await client.query("rollback").catch(() => {});
    throw new MigrationError(`${name}${place(sql, error)}: ${(error as Error).message}`, { cause: error });
  }
}

/** ` line 3, column 7` of the file, where PostgreSQL named a position (1-based, in characters). */
function place(sql: string, error: unknown): string {
  const position = Number((error as { position?: string }).position);
  if (!position) return "";
  const before = sql.slice(0, position - 1).split("\n");
  return ` line ${before.length}, column ${before.at(-1)!.length + 1}`;
}

function checksum(sql: string): string {
  return createHash("sha256").update(sql).digest("hex");
}
