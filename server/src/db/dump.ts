/**
 * Writes the database to files while the server runs: one file of rows for each table, and `dump.json`, which lists
 * these files. All rows are of one moment. Schemas other than `public` and `graphile_worker` belong to other programs.
 * The dump has no table definitions: `load.ts` creates the tables by the same migrations.
 */
import { createWriteStream } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import pg from "pg";
import { copyOut } from "./copy.ts";
import type { Connection } from "./db.ts";
import { withClient } from "./with-client.ts";

export interface DumpedTable {
  schema: string;
  name: string;
  columns: string[];
  file: string;
}

/** Name of a volume's directory, and its region. */
export interface Volume {
  id: string;
  region: string;
}

export interface Dump {
  format: 1;
  /** Names of the applied migrations, in order. */
  migrations: string[];
  /** The last of graphile-worker's migrations. */
  worker_migration: number;
  tables: DumpedTable[];
  /** Volumes with data at the time of the dump. */
  volumes: Volume[];
  sequences: { schema: string; name: string; value: string }[];
}

/** Tables that record the applied migrations. A load runs the migrations, which writes these rows. */
const writtenByMigrations = ["public.migrations", "graphile_worker.migrations"];

/** Writes the database into `directory`, which must not exist. */
export async function dumpDatabase(connection: Connection, directory: string): Promise<Dump> {
  return withClient(connection, async (client) => {
    await mkdir(directory, { mode: 0o700 });
    await client.query("begin isolation level repeatable read read only");
    await setFormats(client);
    const dump: Dump = {
      format: 1,
      migrations: await migrationsOf(client),
      worker_migration: await workerMigration(client),
      tables: (await tablesOf(client)).filter(
        ({ schema, name }) => !writtenByMigrations.includes(`${schema}.${name}`),
      ),
      volumes: await volumesOf(client),
      sequences: [],
    };
    for (const table of dump.tables) {
      const file = createWriteStream(join(directory, table.file), { flags: "wx", mode: 0o600 });
      await pipeline(copyOut(client, `copy ${copyTarget(table)} to stdout`), createGzip({ level: 3 }), file);
    }
    // Sequences are outside transactions. Their values include numbers used during the dump, so these numbers are not
    // used again.
    dump.sequences = (
      await client.query<{ schema: string; name: string; value: string }>(
        `select schemaname as schema, sequencename as name, last_value::text as value from pg_sequences
         where schemaname in ('public', 'graphile_worker') and last_value is not null order by 1, 2`,
      )
    ).rows;
    await client.query("commit");
    await writeFile(join(directory, "dump.json"), JSON.stringify(dump, null, 1), { mode: 0o600 });
    return dump;
  });
}

/** Lists the volumes that have data, by their rows. */
export async function listVolumes(connection: Connection): Promise<Volume[]> {
  return withClient(connection, volumesOf);
}

/** An add-on's volume has the add-on's id without its dashes (platform/addons/instances/volume.ts). */
async function volumesOf(client: pg.Client): Promise<Volume[]> {
  const { rows } = await client.query<Volume>(
    `select id, region from sandbox_volumes where is_made and deleted_at is null
     union all
     select 'addon_' || replace(a.id::text, '-', ''), p.region
     from addons a join projects p on p.id = a.project_id where a.is_made and a.deleted_at is null
     order by 1`,
  );
  return rows;
}

/**
 * Sets the text format of values, which differs by role or database (pg_dump does the same). With `row_security` off, a
 * policy that hides rows causes an error instead of a smaller dump.
 */
export async function setFormats(client: pg.Client): Promise<void> {
  await client.query(
    `set local datestyle = 'ISO, YMD'; set local intervalstyle = 'postgres';
     set local extra_float_digits = 3; set local row_security = off; set local statement_timeout = 0;
     set local idle_in_transaction_session_timeout = 0`,
  );
}

/** `"public"."users" ("id", "email")`. */
export function copyTarget(table: Pick<DumpedTable, "schema" | "name" | "columns">): string {
  return `${qualifiedName(table)} (${table.columns.map((column) => pg.escapeIdentifier(column)).join(", ")})`;
}

export function qualifiedName({ schema, name }: { schema: string; name: string }): string {
  return `${pg.escapeIdentifier(schema)}.${pg.escapeIdentifier(name)}`;
}

/** Lists ordinary tables with their stored columns. The load computes generated columns again. */
export async function tablesOf(client: pg.Client): Promise<DumpedTable[]> {
  const { rows } = await client.query<{ schema: string; name: string; columns: string[] }>(
    `select n.nspname::text as schema, c.relname::text as name,
            array_agg(a.attname::text order by a.attnum) as columns
     from pg_class c
     join pg_namespace n on n.oid = c.relnamespace
     join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
     where c.relkind = 'r' and n.nspname in ('public', 'graphile_worker')
     group by 1, 2 order by 1, 2`,
  );
  return rows.map((row) => ({ ...row, file: `${row.schema}.${row.name}.rows.gz` }));
}

async function migrationsOf(client: pg.Client): Promise<string[]> {
  const { rows } = await client.query<{ name: string }>("select name from migrations order by name");
  return rows.map(({ name }) => name);
}

export async function workerMigration(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ id: number }>(
    "select max(id)::int as id from graphile_worker.migrations",
  );
  return rows[0]?.id ?? 0;
}
