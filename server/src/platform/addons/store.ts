/** All SQL of the addons table. Callers check access on the project, and pass its id. */
import { type Insertable, type Selectable, sql } from "kysely";
import type { Db, Transaction } from "#schema.ts";
import type { AddonProgress, AddonsTable } from "./tables.ts";

export type AddonRow = Selectable<AddonsTable>;

/** An add-on with its workspace, and its project's name and region. */
export type AddonView = AddonRow & { workspace_id: string; project_name: string; region: string };

export type AddonChange = Partial<
  Pick<
    AddonRow,
    "status" | "error" | "public" | "public_port" | "is_made" | "restart_count" | "updated_at" | "deleted_at"
  > & { progress: null }
>;

export function listOf(db: Db, projectId: string): Promise<AddonView[]> {
  return views(db)
    .where("a.project_id", "=", projectId)
    .where("a.deleted_at", "is", null)
    .orderBy("a.created_at", "desc")
    .orderBy("a.id", "desc")
    .execute();
}

export function findOf(db: Db, projectId: string, id: string): Promise<AddonView | undefined> {
  return views(db)
    .where("a.project_id", "=", projectId)
    .where("a.id", "=", id)
    .where("a.deleted_at", "is", null)
    .executeTakeFirst();
}

/** Returns an add-on without an access check, for the server's own work. Deleted add-ons are included. */
export function findAny(db: Db, id: string): Promise<AddonView | undefined> {
  return views(db).where("a.id", "=", id).executeTakeFirst();
}

/** Returns add-ons with their workspace. Deleted add-ons are included. */
export function findWorkspaces(
  db: Db,
  ids: readonly string[],
): Promise<{ id: string; workspace_id: string }[]> {
  return db
    .selectFrom("addons as a")
    .innerJoin("projects as p", "p.id", "a.project_id")
    .select(["a.id", "p.workspace_id"])
    .where("a.id", "=", sql<string>`any(${sql.val([...ids])}::uuid[])`)
    .execute();
}

/** Lists all add-ons of the installation. Deleted add-ons are included. */
export function listAll(db: Db): Promise<AddonView[]> {
  return views(db).orderBy("a.created_at").execute();
}

export function listAllOf(db: Db, projectId: string): Promise<AddonView[]> {
  return views(db).where("a.project_id", "=", projectId).execute();
}

/** Lists the add-ons of one environment, and those for all environments of its project, oldest first. */
export async function listFor(db: Db, environmentId: string): Promise<AddonView[]> {
  return views(db)
    .innerJoin("environments as e", "e.project_id", "a.project_id")
    .where("e.id", "=", environmentId)
    .where((eb) => eb.or([eb("a.environment_id", "is", null), eb("a.environment_id", "=", environmentId)]))
    .where("a.deleted_at", "is", null)
    .orderBy("a.created_at")
    .orderBy("a.id")
    .execute();
}

/** Counts the workspace's add-ons. Blocks the creation of others in the workspace until the transaction ends. */
export async function lockAndCount(tx: Transaction, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 20))`.execute(tx);
  return countRows(tx, workspaceId);
}

export async function countRows(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("addons as a")
    .innerJoin("projects as p", "p.id", "a.project_id")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("p.workspace_id", "=", workspaceId)
    .where("p.deleted_at", "is", null)
    .where("a.deleted_at", "is", null)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/**
 * Returns the lowest free index, and blocks other callers until the transaction ends. A deleted add-on keeps its index
 * until it is removed.
 */
export async function takeIndex(tx: Transaction): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended('addons.private_index', 20))`.execute(tx);
  const { rows } = await sql<{ free: number }>`
    select coalesce(min(place), 0)::int as free
    from (select 0 as place union select private_index + 1 from addons) as places
    where place not in (select private_index from addons)`.execute(tx);
  return rows[0]!.free;
}

/** Returns the public ports in use, and blocks other callers until the transaction ends. */
export async function lockPublicPorts(tx: Transaction): Promise<Set<number>> {
  await sql`select pg_advisory_xact_lock(hashtextextended('addons.public_port', 20))`.execute(tx);
  const rows = await tx
    .selectFrom("addons")
    .select("public_port")
    .where("public_port", "is not", null)
    .execute();
  return new Set(rows.map(({ public_port }) => public_port!));
}

/** Inserts the row. Returns undefined if the name is taken. */
export function insertRow(tx: Transaction, row: Insertable<AddonsTable>): Promise<AddonRow | undefined> {
  return tx
    .insertInto("addons")
    .values(row)
    .onConflict((conflict) =>
      conflict.columns(["project_id", "name"]).where("deleted_at", "is", null).doNothing(),
    )
    .returningAll()
    .executeTakeFirst();
}

export function changeRow(db: Db, id: string, change: AddonChange): Promise<AddonRow | undefined> {
  return db.updateTable("addons").set(change).where("id", "=", id).returningAll().executeTakeFirst();
}

export async function writeProgress(db: Db, id: string, progress: AddonProgress | null): Promise<void> {
  await db
    .updateTable("addons")
    .set({ progress: progress === null ? null : JSON.stringify(progress) })
    .where("id", "=", id)
    .execute();
}

/** Clears progress that an earlier server stored. */
export async function clearAllProgress(db: Db): Promise<void> {
  await db.updateTable("addons").set({ progress: null }).where("progress", "is not", null).execute();
}

export async function deleteRow(db: Db, id: string): Promise<void> {
  await db.deleteFrom("addons").where("id", "=", id).where("deleted_at", "is not", null).execute();
}

const views = (db: Db) =>
  db
    .selectFrom("addons as a")
    .innerJoin("projects as p", "p.id", "a.project_id")
    .selectAll("a")
    .select(["p.workspace_id", "p.name as project_name", "p.region"]);
