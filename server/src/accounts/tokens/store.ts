import { type Insertable, type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { ReachableWorkspace } from "../actor.ts";
import type { ApiTokensTable } from "../tables.ts";

export type TokenRow = Selectable<ApiTokensTable>;

const own = (db: Db, userId: string) =>
  db
    .selectFrom("api_tokens")
    .selectAll()
    .where("user_id", "=", userId)
    .where("class", "=", "user")
    .where("revoked_at", "is", null);

export function listOwn(db: Db, userId: string): Promise<TokenRow[]> {
  return own(db, userId).orderBy("created_at", "desc").orderBy("id", "desc").execute();
}

export function findOwn(db: Db, userId: string, id: string): Promise<TokenRow | undefined> {
  return own(db, userId).where("id", "=", id).forUpdate().executeTakeFirst();
}

export function insertToken(db: Db, row: Insertable<ApiTokensTable>): Promise<TokenRow> {
  return db.insertInto("api_tokens").values(row).returningAll().executeTakeFirstOrThrow();
}

/**
 * Counts active tokens. A token bound to a team counts for the team, and any other token for its owner. Expired tokens
 * are not active.
 */
export async function countActive(
  db: Db,
  { id, kind }: Pick<ReachableWorkspace, "id" | "kind">,
  userId: string,
  now: Date,
): Promise<number> {
  const { count } = await db
    .selectFrom("api_tokens")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("class", "=", "user")
    .where("revoked_at", "is", null)
    .where((where) => where.or([where("expires_at", "is", null), where("expires_at", ">", now)]))
    .where((where) =>
      kind === "team"
        ? where("workspace_id", "=", id)
        : where.and([
            where("user_id", "=", userId),
            where.or([where("workspace_id", "is", null), where("workspace_id", "=", id)]),
          ]),
    )
    .executeTakeFirstOrThrow();
  return count;
}

export async function revoke(db: Db, id: string, now: Date): Promise<void> {
  await db.updateTable("api_tokens").set({ revoked_at: now }).where("id", "=", id).execute();
}

export async function deleteRunToken(db: Db, id: string): Promise<void> {
  await db.deleteFrom("api_tokens").where("id", "=", id).where("class", "=", "agent").execute();
}

export async function deleteOfRun(db: Db, runId: string): Promise<void> {
  await db.deleteFrom("api_tokens").where("run_id", "=", runId).execute();
}

/** Builds a part of a statement in which `run` is the run's row. */
export function deleteOfRunSql(): RawBuilder<unknown> {
  return sql`tokens as (delete from api_tokens using run where api_tokens.run_id = run.id)`;
}
