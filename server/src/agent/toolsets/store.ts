/** All SQL of the toolsets. Functions for callers take the reachable workspaces as an argument. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import type { Db } from "#schema.ts";
import type { AgentToolsetsTable } from "./tables.ts";

export type ToolsetRow = Selectable<AgentToolsetsTable>;

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

/** Counts the workspace's toolsets, and blocks other creations in the workspace until the transaction ends. */
export async function lockAndCount(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 43))`.execute(tx);
  const { count } = await tx
    .selectFrom("agent_toolsets")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Inserts a toolset and returns its row. Returns undefined if the name is taken. */
export function insertToolset(
  tx: Db,
  toolset: Insertable<AgentToolsetsTable>,
): Promise<ToolsetRow | undefined> {
  return tx
    .insertInto("agent_toolsets")
    .values(toolset)
    .onConflict((conflict) => conflict.columns(["workspace_id", "name"]).doNothing())
    .returningAll()
    .executeTakeFirst();
}

export function listToolsets(db: Db, workspaceIds: readonly string[]): Promise<ToolsetRow[]> {
  return db
    .selectFrom("agent_toolsets")
    .selectAll()
    .where("workspace_id", "=", among(workspaceIds))
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

export function findToolset(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<ToolsetRow | undefined> {
  return db
    .selectFrom("agent_toolsets")
    .selectAll()
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .executeTakeFirst();
}

export function toolsetById(db: Db, id: string): Promise<ToolsetRow | undefined> {
  return db.selectFrom("agent_toolsets").selectAll().where("id", "=", id).executeTakeFirst();
}

/** Locks the toolset's row until the transaction ends, and returns the row. */
export function lockToolset(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<ToolsetRow | undefined> {
  return tx
    .selectFrom("agent_toolsets")
    .selectAll()
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .forUpdate()
    .executeTakeFirst();
}

export function toolsetsByIds(db: Db, workspaceId: string, ids: readonly string[]): Promise<ToolsetRow[]> {
  return db
    .selectFrom("agent_toolsets")
    .selectAll()
    .where("workspace_id", "=", workspaceId)
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .execute();
}

/**
 * Locks the toolsets against changes and deletion until the transaction ends. Several transactions may hold this lock.
 */
export function holdToolsets(tx: Db, workspaceId: string, ids: readonly string[]): Promise<ToolsetRow[]> {
  return tx
    .selectFrom("agent_toolsets")
    .selectAll()
    .where("workspace_id", "=", workspaceId)
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::text[])`)
    .orderBy("id")
    .forShare()
    .execute();
}

export type ToolsetChange = Omit<
  Updateable<AgentToolsetsTable>,
  "id" | "workspace_id" | "kind" | "created_at"
>;

export function changeToolset(tx: Db, id: string, change: ToolsetChange): Promise<ToolsetRow> {
  return tx
    .updateTable("agent_toolsets")
    .set({ ...change, id })
    .where("id", "=", id)
    .returningAll()
    .executeTakeFirstOrThrow();
}

/** Records that a call reached the server. Does nothing if the toolset changed after it was read. */
export async function markReachable(
  db: Db,
  { id, url, status, last_error }: Pick<ToolsetRow, "id" | "url" | "status" | "last_error">,
): Promise<void> {
  await db
    .updateTable("agent_toolsets")
    .set({ status: "ready", last_error: null })
    .where("id", "=", id)
    .where("url", "=", url)
    .where("status", "=", status)
    .where("last_error", "is not distinct from", last_error)
    .execute();
}

/** Finds and locks the next toolset, by id, that has plain-text header values. */
export function lockNextUnsealed(tx: Db, afterId: string): Promise<ToolsetRow | undefined> {
  return tx
    .selectFrom("agent_toolsets")
    .selectAll()
    .where("id", ">", afterId)
    .where("kind", "=", "http")
    .where("http_headers_sealed", "is", null)
    .where(sql<boolean>`http_tools::text like '%"headers"%'`)
    .orderBy("id")
    .limit(1)
    .forUpdate()
    .executeTakeFirst();
}

export async function deleteToolset(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("agent_toolsets").where("id", "=", id).execute();
}
