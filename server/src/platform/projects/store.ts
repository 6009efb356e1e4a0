/** All SQL of the projects table. Functions for callers take the caller's workspaces as an argument. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import type { Db } from "#schema.ts";
import type { ProjectsTable } from "./tables.ts";

export type ProjectRow = Selectable<ProjectsTable>;
export type ProjectChange = Updateable<ProjectsTable>;

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

const living = (db: Db) => db.selectFrom("projects").selectAll().where("deleted_at", "is", null);

// ---- queries for callers

export function findOwn(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<ProjectRow | undefined> {
  return living(db).where("id", "=", id).where("workspace_id", "=", among(workspaceIds)).executeTakeFirst();
}

/** Locks the project of the caller until the transaction ends. */
export function lockOwn(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<ProjectRow | undefined> {
  return living(tx)
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .forUpdate()
    .executeTakeFirst();
}

/** Lists projects, newest first. */
export async function listOwn(
  db: Db,
  workspaceIds: readonly string[],
  page: { skip: number; limit: number },
): Promise<{ rows: ProjectRow[]; total: number }> {
  const own = db
    .selectFrom("projects")
    .where("workspace_id", "=", among(workspaceIds))
    .where("deleted_at", "is", null);
  const [rows, counted] = await Promise.all([
    own
      .selectAll()
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .offset(page.skip)
      .limit(page.limit)
      .execute(),
    own.select(({ fn }) => fn.countAll<number>().as("total")).executeTakeFirstOrThrow(),
  ]);
  return { rows, total: counted.total };
}

/** Lists the projects of a group, newest first. */
export function listOfGroup(db: Db, groupId: string, workspaceIds: readonly string[]): Promise<ProjectRow[]> {
  return living(db)
    .where("group_id", "=", groupId)
    .where("workspace_id", "=", among(workspaceIds))
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

/** Counts the projects of a workspace, and blocks creations in the workspace until the transaction ends. */
export async function lockAndCount(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 11))`.execute(tx);
  return countRows(tx, workspaceId);
}

export async function countRows(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("projects")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("deleted_at", "is", null)
    .executeTakeFirstOrThrow();
  return count;
}

/** Locks the name until the transaction ends, so that concurrent requests for it run one after the other. */
export async function lockName(tx: Db, name: string): Promise<void> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${name}, 12))`.execute(tx);
}

export function insertRow(tx: Db, row: Insertable<ProjectsTable>): Promise<ProjectRow> {
  return tx.insertInto("projects").values(row).returningAll().executeTakeFirstOrThrow();
}

// ---- changes of a locked project

export function changeRow(tx: Db, id: string, change: ProjectChange): Promise<ProjectRow> {
  return tx.updateTable("projects").set(change).where("id", "=", id).returningAll().executeTakeFirstOrThrow();
}

/** Marks a project as deleted, which frees its name, its domain and its place in a group. */
export async function markDeleted(tx: Db, id: string, now: Date): Promise<void> {
  await tx
    .updateTable("projects")
    .set({
      deleted_at: now,
      name: `~${id}`,
      custom_domain: null,
      domain_status: null,
      domain_checked_at: null,
      domain_error: null,
      group_id: null,
    })
    .where("id", "=", id)
    .execute();
}

export async function deleteRow(db: Db, id: string): Promise<void> {
  await db.deleteFrom("projects").where("id", "=", id).where("deleted_at", "is not", null).execute();
}

// ---- queries for other folders

export function findLiving(db: Db, id: string): Promise<ProjectRow | undefined> {
  return living(db).where("id", "=", id).executeTakeFirst();
}

/** Returns projects with their workspace. Deleted projects are included. */
export function findWorkspaces(
  db: Db,
  ids: readonly string[],
): Promise<{ id: string; workspace_id: string }[]> {
  return db
    .selectFrom("projects")
    .select(["id", "workspace_id"])
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::uuid[])`)
    .execute();
}

/** Returns a project of any workspace. Deleted projects are included. */
export function findAny(db: Db, id: string): Promise<ProjectRow | undefined> {
  return db.selectFrom("projects").selectAll().where("id", "=", id).executeTakeFirst();
}

export function findByName(db: Db, name: string): Promise<ProjectRow | undefined> {
  return living(db).where("name", "=", name).executeTakeFirst();
}

export async function isNameOfProject(db: Db, name: string): Promise<boolean> {
  const found = await db.selectFrom("projects").select("id").where("name", "=", name).executeTakeFirst();
  return found !== undefined;
}

/** True if another project has the domain verified. Several projects may request a domain; its DNS records decide. */
export async function isDomainOfAnother(db: Db, hostname: string, id: string | null): Promise<boolean> {
  const found = await db
    .selectFrom("projects")
    .select("id")
    .where("custom_domain", "=", hostname)
    .where("domain_status", "=", "verified")
    .where((where) => (id === null ? where.lit(true) : where("id", "!=", id)))
    .executeTakeFirst();
  return found !== undefined;
}
