/**
 * Puts a dump (`dump.ts`) into an empty database: the migrations of the dump make the tables, and one transaction fills
 * them. A schema marks the load until then, so that no server starts on half a database. The foreign keys are taken
 * off and put back in the same transaction, which checks every row, and needs no superuser.
 */
import { createReadStream, existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createGunzip } from "node:zlib";
import pg from "pg";
import { copyIn } from "./copy.ts";
import { clientOptions, type Connection } from "./db.ts";
import { described, type Dump, qualified, tablesOf, workerMigration } from "./dump.ts";
import { migrate, readMigrations } from "./migrate.ts";
import { becomeSoleServer } from "./sole-server.ts";

export class LoadError extends Error {
  override readonly name = "LoadError";
}

const mark = "kontor_load_unfinished";

/** Lies in a data directory while `kontor restore` fills it. */
export const restoreMark = "restore-unfinished";

/** Fails in a data directory whose restore did not finish. */
export function refuseUnfinishedRestore(dataDir: string): void {
  if (!existsSync(join(dataDir, restoreMark))) return;
  throw new LoadError(
    `${dataDir} holds a restore that did not finish; empty the directory and run kontor restore again`,
  );
}

/** Fails while a restore is not finished, or was cut off. */
export async function refuseUnfinishedLoad(connection: Connection): Promise<void> {
  await withClient(connection, async (client) => {
    const { rowCount } = await client.query("select from pg_namespace where nspname = $1", [mark]);
    if (!rowCount) return;
    throw new LoadError(
      "the database holds a restore that did not finish; drop the database, create it empty, and run kontor restore again",
    );
  });
}

/** Fails unless nothing of any Kontor is in the database. Changes nothing. */
export async function refuseFullDatabase(connection: Connection): Promise<void> {
  await refuseUnfinishedLoad(connection);
  await withClient(connection, async (client) => {
    const { rows } = await client.query<{ name: string }>(
      `select n.nspname || '.' || c.relname as name from pg_class c join pg_namespace n on n.oid = c.relnamespace
       where n.nspname in ('public', 'graphile_worker') and c.relkind in ('r', 'v', 'm', 'S', 'p') limit 1`,
    );
    if (rows[0]) {
      throw new LoadError(
        `the database is not empty: it has ${rows[0].name}; give the restore an empty one by KONTOR_DATABASE_URL`,
      );
    }
  });
}

/** Reads `dump.json`, and fails where this code is older than the dump. */
export async function readDump(directory: string): Promise<Dump> {
  const dump = JSON.parse(await readFile(join(directory, "dump.json"), "utf8")) as Dump;
  const known = new Set(readMigrations().map(({ name }) => name));
  const unknown = dump.migrations.find((name) => !known.has(name));
  if (unknown !== undefined) {
    throw new LoadError(
      `the backup has ${unknown}, which this Kontor does not know: restore with a newer one`,
    );
  }
  return dump;
}

/** Loads the dump in `directory` into the empty database, as the only server of the host. */
export async function loadDatabase(connection: Connection, directory: string, hostId: string): Promise<void> {
  const dump = await readDump(directory);
  let isLost = false;
  const sole = await becomeSoleServer(connection, hostId, () => (isLost = true));
  if (!sole) throw new LoadError("a server runs on this database; stop it first (kontor down)");
  try {
    await refuseFullDatabase(connection);
    await withClient(connection, async (client) => {
      await client.query(`create schema ${mark}`);
      const wanted = new Set(dump.migrations);
      await migrate(
        connection,
        readMigrations().filter(({ name }) => wanted.has(name)),
      );
      if ((await workerMigration(client)) < dump.worker_migration) {
        throw new LoadError("the backup has a newer queue of jobs: restore with a newer Kontor");
      }
      await client.query("begin");
      await fill(client, dump, directory);
      await client.query(`drop schema ${mark}`);
      if (isLost) throw new LoadError("another server took over the database during the load");
      await client.query("commit");
    });
  } finally {
    await sole.release();
  }
}

async function fill(client: pg.Client, dump: Dump, directory: string): Promise<void> {
  const known = new Map((await tablesOf(client)).map((table) => [qualified(table), table]));
  for (const table of dump.tables) {
    const here = known.get(qualified(table));
    const missing = here ? table.columns.find((column) => !here.columns.includes(column)) : table.name;
    if (missing !== undefined)
      throw new LoadError(`the backup has ${table.name}.${missing}, which is not known`);
  }
  const { rows: keys } = await client.query<{ place: string; name: string; definition: string }>(
    `select conrelid::regclass::text as place, conname::text as name, pg_get_constraintdef(oid) as definition
     from pg_constraint where contype = 'f'
     and connamespace in (select oid from pg_namespace where nspname in ('public', 'graphile_worker'))`,
  );
  for (const { place, name } of keys) {
    await client.query(`alter table ${place} drop constraint ${pg.escapeIdentifier(name)}`);
  }
  // Rows that the migrations put there are in the dump as well.
  const names = dump.tables.map(qualified);
  if (names.length > 0) await client.query(`truncate ${names.join(", ")}`);
  for (const name of names) await client.query(`alter table ${name} disable trigger user`);
  for (const table of dump.tables) {
    const rows = createReadStream(join(directory, table.file)).pipe(createGunzip());
    await copyIn(client, `copy ${described(table)} from stdin`, rows);
  }
  for (const name of names) await client.query(`alter table ${name} enable trigger user`);
  for (const { place, name, definition } of keys) {
    await client.query(`alter table ${place} add constraint ${pg.escapeIdentifier(name)} ${definition}`);
  }
  for (const { schema, name, value } of dump.sequences) {
    await client.query("select setval($1::regclass, $2::bigint)", [qualified({ schema, name }), value]);
  }
}

async function withClient<T>(connection: Connection, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ ...clientOptions(connection), connectionTimeoutMillis: 10_000 });
  client.on("error", () => {});
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end().catch(() => {});
  }
}
