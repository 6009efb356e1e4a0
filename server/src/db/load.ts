/**
 * Loads a dump (`dump.ts`) into an empty database. The migrations of the dump create the tables, and one transaction
 * fills them. Until that transaction commits, an extra schema marks the database, so that no server starts on it. The
 * same transaction drops the foreign keys and adds them again, which checks every row and needs no superuser.
 */
import { existsSync } from "node:fs";
import { open, readFile } from "node:fs/promises";
import { join } from "node:path";
import { createGunzip } from "node:zlib";
import pg from "pg";
import { copyIn } from "./copy.ts";
import type { Connection } from "./db.ts";
import { copyTarget, type Dump, qualifiedName, setFormats, tablesOf, workerMigration } from "./dump.ts";
import { migrate, readMigrations } from "./migrate.ts";
import { becomeSoleServer } from "./sole-server.ts";
import { withClient } from "./with-client.ts";

class LoadError extends Error {
  override readonly name = "LoadError";
}

const mark = "kontor_load_unfinished";

/** Name of the file that marks a data directory while `kontor restore` fills it. */
export const restoreMark = "restore-unfinished";

/** Throws if the data directory's restore did not finish. */
export function refuseUnfinishedRestore(dataDir: string): void {
  if (!existsSync(join(dataDir, restoreMark))) return;
  throw new LoadError(
    `${dataDir} holds a restore that did not finish; empty the directory and run kontor restore again`,
  );
}

/** Throws while a restore runs, or if the last restore was killed. */
export async function refuseUnfinishedLoad(connection: Connection): Promise<void> {
  await withClient(connection, async (client) => {
    const { rowCount } = await client.query("select from pg_namespace where nspname = $1", [mark]);
    if (!rowCount) return;
    throw new LoadError(
      "the database holds a restore that did not finish; drop the database, create it empty, and run kontor restore again",
    );
  });
}

/** Throws if the database has tables of Kontor. Changes nothing. */
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

/** Reads `dump.json`. Throws if this code is older than the dump. */
export async function readDump(directory: string): Promise<Dump> {
  const dump = parseDump(await readFile(join(directory, "dump.json"), "utf8"));
  const known = new Set(readMigrations().map(({ name }) => name));
  const unknown = dump.migrations.find((name) => !known.has(name));
  if (unknown !== undefined) {
    throw new LoadError(
      `the backup has ${unknown}, which this Kontor does not know: restore with a newer one`,
    );
  }
  return dump;
}

function parseDump(text: string): Dump {
  const dump = JSON.parse(text) as Dump;
  // A file name must not lead outside of the dump's directory.
  if (dump.format === 1 && dump.tables.every(({ file }) => /^[\w.-]+$/.test(file))) return dump;
  throw new LoadError(
    "the dump in the backup has a format that this Kontor cannot read: restore with a newer one",
  );
}

/** Loads the dump in `directory` into the empty database, as the only server of the host. */
export async function loadDatabase(connection: Connection, directory: string, hostId: string): Promise<void> {
  const dump = await readDump(directory);
  await asSoleServer(connection, hostId, async (isLost) => {
    await refuseFullDatabase(connection);
    await withClient(connection, async (client) => {
      await client.query(`create schema ${mark}`);
      await load(client, connection, { dump, directory, isLost });
    });
  });
}

/**
 * Restores the database to the tables and rows of the dump in `directory`, as the only server of the host. Returns
 * "kept" and changes nothing if the database has the migrations of the dump. The code of the dump can then read the
 * database, and newer rows stay. A second call completes a restore that was killed.
 */
export async function restoreDatabase(
  connection: Connection,
  directory: string,
  hostId: string,
): Promise<"kept" | "restored"> {
  const dump = await readDump(directory);
  return asSoleServer(connection, hostId, (isLost) =>
    withClient(connection, async (client) => {
      if (await isAsDumped(client, dump)) return "kept";
      await client.query(`create schema if not exists ${mark}`);
      await dropTables(client);
      await load(client, connection, { dump, directory, isLost });
      return "restored";
    }),
  );
}

/** True if the database has the tables of the dump. */
export async function hasTablesOf(connection: Connection, directory: string): Promise<boolean> {
  const dump = await readDump(directory);
  return withClient(connection, (client) => isAsDumped(client, dump));
}

async function asSoleServer<T>(
  connection: Connection,
  hostId: string,
  work: (isLost: () => boolean) => Promise<T>,
): Promise<T> {
  let isLost = false;
  const sole = await becomeSoleServer(connection, hostId, () => (isLost = true));
  if (!sole) throw new LoadError("a server runs on this database; stop it first (kontor down)");
  try {
    return await work(() => isLost);
  } finally {
    await sole.release();
  }
}

/** Fills an empty database that has the mark, and removes the mark. */
async function load(
  client: pg.Client,
  connection: Connection,
  { dump, directory, isLost }: { dump: Dump; directory: string; isLost: () => boolean },
): Promise<void> {
  const wanted = new Set(dump.migrations);
  await migrate(
    connection,
    readMigrations().filter(({ name }) => wanted.has(name)),
  );
  if ((await workerMigration(client)) < dump.worker_migration) {
    throw new LoadError("the backup has a newer queue of jobs: restore with a newer Kontor");
  }
  await client.query("begin");
  await setFormats(client);
  await fill(client, dump, directory);
  await client.query(`drop schema ${mark}`);
  if (isLost()) throw new LoadError("another server took over the database during the load");
  await client.query("commit");
}

async function isAsDumped(client: pg.Client, dump: Dump): Promise<boolean> {
  const { rows: marks } = await client.query("select from pg_namespace where nspname = $1", [mark]);
  const { rows: tables } = await client.query<{ are_there: boolean }>(
    `select to_regclass('public.migrations') is not null
            and to_regclass('graphile_worker.migrations') is not null as are_there`,
  );
  if (marks.length > 0 || !tables[0]?.are_there) return false;
  const { rows } = await client.query<{ name: string }>("select name from migrations order by name");
  return (
    JSON.stringify(rows.map(({ name }) => name)) === JSON.stringify(dump.migrations) &&
    (await workerMigration(client)) === dump.worker_migration
  );
}

/** Drops everything in Kontor's two schemas, except for objects of extensions. */
async function dropTables(client: pg.Client): Promise<void> {
  await client.query(
    `begin;
     set local statement_timeout = 0;
     drop schema if exists graphile_worker cascade;
     do $$
     declare command text;
     begin
       for command in
         select format('drop %s if exists public.%I cascade', case c.relkind
             when 'v' then 'view' when 'm' then 'materialized view' when 'S' then 'sequence' else 'table' end, c.relname)
         from pg_class c
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
         and not exists (select from pg_depend where objid = c.oid and deptype = 'e')
         -- The sequence of an identity column is dropped with its table, and not before it.
         order by c.relkind = 'S'
       loop execute command; end loop;
       for command in
         select format('drop routine if exists %s cascade', p.oid::regprocedure)
         from pg_proc p
         where p.pronamespace = 'public'::regnamespace
         and not exists (select from pg_depend where objid = p.oid and deptype = 'e')
       loop execute command; end loop;
       for command in
         select format('drop type if exists public.%I cascade', t.typname)
         from pg_type t
         where t.typnamespace = 'public'::regnamespace and t.typtype in ('e', 'd')
         and not exists (select from pg_depend where objid = t.oid and deptype = 'e')
       loop execute command; end loop;
     end $$;
     commit`,
  );
}

async function fill(client: pg.Client, dump: Dump, directory: string): Promise<void> {
  const known = new Map((await tablesOf(client)).map((table) => [qualifiedName(table), table]));
  for (const table of dump.tables) {
    const here = known.get(qualifiedName(table));
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
  // The dump also has the rows that migrations insert.
  const names = dump.tables.map(qualifiedName);
  if (names.length > 0) await client.query(`truncate ${names.join(", ")}`);
  for (const name of names) await client.query(`alter table ${name} disable trigger user`);
  for (const table of dump.tables) {
    // The file is opened here, because `pipe` does not forward errors: a missing file would crash the process.
    const file = await open(join(directory, table.file));
    const rows = createGunzip();
    file
      .createReadStream()
      .on("error", (error) => rows.destroy(error))
      .pipe(rows);
    await copyIn(client, `copy ${copyTarget(table)} from stdin`, rows);
  }
  for (const name of names) await client.query(`alter table ${name} enable trigger user`);
  for (const { place, name, definition } of keys) {
    await client.query(`alter table ${place} add constraint ${pg.escapeIdentifier(name)} ${definition}`);
  }
  for (const { schema, name, value } of dump.sequences) {
    await client.query("select setval($1::regclass, $2::bigint)", [qualifiedName({ schema, name }), value]);
  }
}
