/**
 * The database as files, while the server goes on: one file of rows for each table, all of one moment, and
 * `dump.json`, which lists them. Schemas other than `public` and `graphile_worker` belong to other programs. The tables
 * themselves are not in the dump: `load.ts` makes them by the same migrations.
 */
import { createWriteStream } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import pg from "pg";
import { copyOut } from "./copy.ts";
import { clientOptions, type Connection } from "./db.ts";

export interface DumpedTable {
  schema: string;
  name: string;
  columns: string[];
  file: string;
}

export interface Dump {
  format: 1;
  /** Names of the migrations that had run, in order. */
  migrations: string[];
  /** The last migration of graphile-worker's own. */
  worker_migration: number;
  tables: DumpedTable[];
  sequences: { schema: string; name: string; value: string }[];
}

/** Tables that say which migrations ran: a load makes their rows by running those. */
const madeByMigrations = ["public.migrations", "graphile_worker.migrations"];

/** Writes the database into `directory`, which must not exist. */
export async function dumpDatabase(connection: Connection, directory: string): Promise<Dump> {
  const client = new pg.Client({ ...clientOptions(connection), connectionTimeoutMillis: 10_000 });
  client.on("error", () => {});
  await client.connect();
  try {
    await mkdir(directory, { mode: 0o700 });
    await client.query("begin isolation level repeatable read read only");
    const dump: Dump = {
      format: 1,
      migrations: await migrationsOf(client),
      worker_migration: await workerMigration(client),
      tables: (await tablesOf(client)).filter(
        ({ schema, name }) => !madeByMigrations.includes(`${schema}.${name}`),
      ),
      sequences: [],
    };
    for (const table of dump.tables) {
      const file = createWriteStream(join(directory, table.file), { flags: "wx", mode: 0o600 });
      await pipeline(copyOut(client, `copy ${described(table)} to stdout`), createGzip({ level: 3 }), file);
    }
    // Numbers that were given out meanwhile are not given out again: a sequence knows no transaction.
    dump.sequences = (
      await client.query<{ schema: string; name: string; value: string }>(
        `select schemaname as schema, sequencename as name, last_value::text as value from pg_sequences
         where schemaname in ('public', 'graphile_worker') and last_value is not null order by 1, 2`,
      )
    ).rows;
    await client.query("commit");
    await writeFile(join(directory, "dump.json"), JSON.stringify(dump, null, 1), { mode: 0o600 });
    return dump;
  } finally {
    await client.end().catch(() => {});
  }
}

/** `"public"."users" ("id", "email")`. */
export function described(table: Pick<DumpedTable, "schema" | "name" | "columns">): string {
  return `${qualified(table)} (${table.columns.map((column) => pg.escapeIdentifier(column)).join(", ")})`;
}

export function qualified({ schema, name }: { schema: string; name: string }): string {
  return `${pg.escapeIdentifier(schema)}.${pg.escapeIdentifier(name)}`;
}

/** Ordinary tables with the columns that are stored; a generated column is computed again by the load. */
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
