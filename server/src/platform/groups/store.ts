/** All SQL of the project_groups table. Functions for callers take the caller's workspaces as an argument. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import type { Db } from "#schema.ts";
import type { GroupsTable } from "./tables.ts";

/** A group with the number of its projects. */
export type GroupRow = Selectable<GroupsTable> & { project_count: number };

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

const withProjectCounts = (db: Db) =>
  db
    .selectFrom("project_groups as g")
    .selectAll("g")
    .select(
      sql<number>`(select count(*) from projects p where p.group_id = g.id and p.deleted_at is null)`.as(
        "project_count",
      ),
    );

/** Lists groups, newest first. */
export function listOwn(db: Db, workspaceIds: readonly string[]): Promise<GroupRow[]> {
  return withProjectCounts(db)
    .where("g.workspace_id", "=", among(workspaceIds))
    .orderBy("g.created_at", "desc")
    .orderBy("g.id", "desc")
    .execute();
}

export function findOwn(db: Db, id: string, workspaceIds: readonly string[]): Promise<GroupRow | undefined> {
  return withProjectCounts(db)
    .where("g.id", "=", id)
    .where("g.workspace_id", "=", among(workspaceIds))
    .executeTakeFirst();
}

/** Locks the group's row until the transaction ends. */
export function lockOwn(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<Selectable<GroupsTable> | undefined> {
  return tx
    .selectFrom("project_groups")
    .selectAll()
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .forUpdate()
    .executeTakeFirst();
}

/** Counts the workspace's groups, and blocks creations in the workspace until the transaction ends. */
export async function lockAndCount(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 13))`.execute(tx);
  const { count } = await tx
    .selectFrom("project_groups")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return count;
}

export function insertRow(tx: Db, row: Insertable<GroupsTable>): Promise<Selectable<GroupsTable>> {
  return tx.insertInto("project_groups").values(row).returningAll().executeTakeFirstOrThrow();
}

export async function changeRow(tx: Db, id: string, change: Updateable<GroupsTable>): Promise<void> {
  await tx.updateTable("project_groups").set(change).where("id", "=", id).execute();
}

/** Deletes the group. The projects are then in no group. */
export async function deleteRow(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("project_groups").where("id", "=", id).execute();
}
