/**
 * All SQL of the commands table. Every function takes the sandbox as an argument; callers have checked its owner.
 */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { SandboxCommandsTable } from "./tables.ts";

export type CommandRow = Selectable<SandboxCommandsTable>;

/** Stores new commands and the ends of running ones. A stored end never changes. */
export async function saveCommands(db: Db, rows: readonly CommandRow[]): Promise<void> {
  if (rows.length === 0) return;
  await db
    .insertInto("sandbox_commands")
    .values([...rows])
    .onConflict((conflict) =>
      conflict
        .columns(["sandbox_id", "id"])
        .doUpdateSet((row) => ({
          status: row.ref("excluded.status"),
          exit_code: row.ref("excluded.exit_code"),
          killed_by: row.ref("excluded.killed_by"),
          // The start comes from this server's clock, the end from the machine's.
          ended_at: sql<Date>`greatest(excluded.ended_at, sandbox_commands.started_at)`,
          output_bytes: row.ref("excluded.output_bytes"),
        }))
        .where("sandbox_commands.ended_at", "is", null)
        .where(sql<boolean>`excluded.ended_at is not null`),
    )
    .execute();
}

export function findCommand(db: Db, sandboxId: string, id: string): Promise<CommandRow | undefined> {
  return db
    .selectFrom("sandbox_commands")
    .selectAll()
    .where("sandbox_id", "=", sandboxId)
    .where("id", "=", id)
    .executeTakeFirst();
}

/** Lists commands, newest first. `started_at_text` keeps the microseconds for the cursor, which a Date drops. */
export function listCommands(
  db: Db,
  sandboxId: string,
  page: { before?: { startedAt: string; id: string } | undefined; limit: number },
): Promise<(CommandRow & { started_at_text: string })[]> {
  let query = db
    .selectFrom("sandbox_commands")
    .selectAll()
    .select(sql<string>`started_at::text`.as("started_at_text"))
    .where("sandbox_id", "=", sandboxId)
    .orderBy("started_at", "desc")
    .orderBy("id", "desc")
    .limit(page.limit);
  if (page.before) {
    const { startedAt, id } = page.before;
    query = query.where(sql<boolean>`(started_at, id) < (${startedAt}::timestamptz, ${id})`);
  }
  return query.execute();
}
