/** All SQL of the project_groups table. The workspaces a caller can reach are an argument of what a caller does. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import type { Db } from "#schema.ts";
import type { GroupsTable } from "./tables.ts";

/** With how many projects it has. */
export type GroupRow = Selectable<GroupsTable> & { project_count: number };

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

const counted = (db: Db) =>
  db
    .selectFrom("project_groups as g")
    .selectAll("g")
    .select(
      sql<number>`(select count(*) from projects p where p.group_id = g.id and p.deleted_at is null)`.as(
        "project_count",
      ),
    );

/** Newest first. */
export function listOwn(db: Db, workspaceIds: readonly string[]): Promise<GroupRow[]> {
  return counted(db)
    .where("g.workspace_id", "=", among(workspaceIds))
    .orderBy("g.created_at", "desc")
    .orderBy("g.id", "desc")
    .execute();
}

export function findOwn(db: Db, id: string, workspaceIds: readonly string[]): Promise<GroupRow | undefined> {
  return counted(db)
    .where("g.id", "=", id)
    .where("g.workspace_id", "=", among(workspaceIds))
    .executeTakeFirst();
}

/** It is there until this transaction ends. */
export function holdOwn(
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

/** With creations in the same workspace held off until this transaction ends. */
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

/** Its projects stay, in no group. */
export async function deleteRow(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("project_groups").where("id", "=", id).execute();
}
