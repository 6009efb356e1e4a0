/**
 * Brings the schema up to date: runs `server/migrations/NNNN_name.sql` in order, each in a transaction with the row
 * that records it. Several processes may start at once: the first migrates, and the others wait for it.
 *
 * An applied file must not change. If its text differs from the applied one, the server refuses to start, because the
 * schema would silently differ from the code's expectation.
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

/** A number of our own, because all users of a database share the numbers of pg_advisory_lock. */
const migrationLock = 7_208_330_211;

const directory = join(import.meta.dirname, "../../migrations");

/** Returns the names of the files that ran now. Throws a `MigrationError`. */
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
      // graphile-worker creates its own tables. The lock covers them too, because its migrations race at the first
      // start.
      await runMigrations({ pgPool: pool, logger: new Logger(() => () => {}) });
      return ran;
    } finally {
      // The end of the session releases the lock, whatever state an error left.
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

/** Throws if an applied migration is unknown to this code, or has changed. `applied` maps names to checksums. */
export function refuseOtherHistory(
  applied: ReadonlyMap<string, string>,
  migrations: readonly Migration[],
): void {
  const unknown = [...applied.keys()].find((name) =>
    migrations.every((migration) => migration.name !== name),
  );
  if (unknown)
    throw new MigrationError(
      `the database has ${unknown}, which this server does not know: use a newer server`,
    );
  const changed = migrations.find(
    ({ name, sql }) => applied.has(name) && applied.get(name) !== checksum(sql),
  );
  if (changed)
    throw new MigrationError(
      `${changed.name} changed after it was applied; restore its text and add a new file`,
    );
}

async function apply(client: pg.PoolClient, { name, sql }: Migration): Promise<void> {
  await client.query("begin");
  try {
    // PostgreSQL gets all statements in a single string, splits it, and reports a position in the file.
    await client.query(sql);
    await client.query("insert into migrations (name, checksum) values ($1, $2)", [name, checksum(sql)]);
    await client.query("commit");
  } catch (error) {
    await client.query("rollback").catch(() => {});
    throw new MigrationError(`${name}${place(sql, error)}: ${(error as Error).message}`, { cause: error });
  }
}

/** Formats ` line 3, column 7` of the file if PostgreSQL reported a position (1-based, in characters). */
function place(sql: string, error: unknown): string {
  const position = Number((error as { position?: string }).position);
  if (!position) return "";
  const before = sql.slice(0, position - 1).split("\n");
  return ` line ${before.length}, column ${before.at(-1)!.length + 1}`;
}

function checksum(sql: string): string {
  return createHash("sha256").update(sql).digest("hex");
}
