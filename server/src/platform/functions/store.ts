/** All SQL of functions. The workspaces a caller can reach are an argument of what a caller does. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import type { Db } from "#db/db.ts";
import type { FunctionsTable } from "./tables.ts";

/** With whether a deploy of it is under way. */
export type FunctionRow = Selectable<FunctionsTable> & { is_building: boolean };
export type FunctionChange = Updateable<FunctionsTable>;

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

const isBuilding = sql<boolean>`exists (
  select from function_versions v where v.function_id = functions.id and v.state = 'building'
)`;

const living = (db: Db) =>
  db
    .selectFrom("functions")
    .selectAll("functions")
    .select(isBuilding.as("is_building"))
    .where("deleted_at", "is", null);

// ---- what callers do

export function findOwn(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<FunctionRow | undefined> {
  return living(db).where("id", "=", id).where("workspace_id", "=", among(workspaceIds)).executeTakeFirst();
}

/** The same, and nobody else's to change until this transaction ends. */
export async function lockOwn(
  tx: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<FunctionRow | undefined> {
  const locked = await tx
    .selectFrom("functions")
    .select("id")
    .where("id", "=", id)
    .where("workspace_id", "=", among(workspaceIds))
    .forUpdate()
    .executeTakeFirst();
  // Read once it is locked: a deploy may have ended while this waited.
  return locked && findOwn(tx, id, workspaceIds);
}

/** Newest first. */
export async function listOwn(
  db: Db,
  workspaceIds: readonly string[],
  page: { skip: number; limit: number },
): Promise<{ rows: FunctionRow[]; total: number }> {
  const [rows, counted] = await Promise.all([
    living(db)
      .where("workspace_id", "=", among(workspaceIds))
      .orderBy("created_at", "desc")
      .orderBy("id", "desc")
      .offset(page.skip)
      .limit(page.limit)
      .execute(),
    db
      .selectFrom("functions")
      .select(({ fn }) => fn.countAll<number>().as("total"))
      .where("workspace_id", "=", among(workspaceIds))
      .where("deleted_at", "is", null)
      .executeTakeFirstOrThrow(),
  ]);
  return { rows, total: counted.total };
}

/** With creations in the same workspace held off until this transaction ends. */
export async function lockAndCount(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 14))`.execute(tx);
  return countRows(tx, workspaceId);
}

export async function countRows(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("functions")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("deleted_at", "is", null)
    .executeTakeFirstOrThrow();
  return count;
}

export async function insertRow(tx: Db, row: Insertable<FunctionsTable>): Promise<FunctionRow> {
  const made = await tx.insertInto("functions").values(row).returningAll().executeTakeFirstOrThrow();
  return { ...made, is_building: false };
}

// ---- what becomes of a function; its row is locked, or it is nobody else's

export function changeRow(tx: Db, id: string, change: FunctionChange): Promise<FunctionRow> {
  return tx
    .updateTable("functions")
    .set(change)
    .where("id", "=", id)
    .returningAll("functions")
    .returning(isBuilding.as("is_building"))
    .executeTakeFirstOrThrow();
}

/** Its name is free for others, and its key opens nothing. */
export async function markDeleted(tx: Db, id: string, now: Date): Promise<void> {
  await tx
    .updateTable("functions")
    .set({ deleted_at: now, name: `~${id}`, auth_mode: "none", api_key_hash: null, api_key_hint: null })
    .where("id", "=", id)
    .execute();
}

/** With its versions, instances and minutes. */
export async function deleteRow(db: Db, id: string): Promise<void> {
  await db.deleteFrom("functions").where("id", "=", id).where("deleted_at", "is not", null).execute();
}

// ---- what others ask

/** Also one that is on its way out. */
export function findAny(db: Db, id: string): Promise<Selectable<FunctionsTable> | undefined> {
  return db.selectFrom("functions").selectAll().where("id", "=", id).executeTakeFirst();
}

export async function isName(db: Db, name: string): Promise<boolean> {
  const found = await db.selectFrom("functions").select("id").where("name", "=", name).executeTakeFirst();
  return found !== undefined;
}
