/** Searches all rows of all tables. So a test can prove that data was deleted everywhere. */
import { sql } from "kysely";
import type { Db } from "#schema.ts";

/**
 * Returns the tables with rows that contain a word in any column, as text or bytes. The value of each table is the text
 * of these rows.
 */
export async function rowsWith(db: Db, words: readonly string[]): Promise<Map<string, string[]>> {
  const { rows: tables } = await sql<{ schema: string; name: string }>`
    select table_schema as schema, table_name as name from information_schema.tables
    where table_type = 'BASE TABLE' and table_schema not in ('pg_catalog', 'information_schema')
    order by 1, 2`.execute(db);
  const escaped = words.map((word) => word.replaceAll(/[\\%_]/g, "\\$&"));
  const patterns = [...escaped, ...words.map((word) => Buffer.from(word).toString("hex"))];
  const found = new Map<string, string[]>();
  for (const { schema, name } of tables) {
    const { rows } = await sql<{ text: string }>`
      select t::text as text from ${sql.table(`${schema}.${name}`)} as t
      where t::text ilike any(${sql.val(patterns.map((pattern) => `%${pattern}%`))}::text[])
      order by 1`.execute(db);
    if (rows.length > 0)
      found.set(
        schema === "public" ? name : `${schema}.${name}`,
        rows.map(({ text }) => text),
      );
  }
  return found;
}

/** Returns the tables that have one of these columns. */
export async function tablesWithColumn(db: Db, columns: readonly string[]): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select distinct table_name as name from information_schema.columns
    where table_schema = 'public' and column_name = any(${sql.val([...columns])}::text[])
    order by 1`.execute(db);
  return rows.map(({ name }) => name);
}
