/** All SQL of functions. The workspaces a caller can reach are an argument of what a caller does. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import type { Db } from "#db/db.ts";
import type { FunctionsTable, FunctionVersionsTable } from "./tables.ts";

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

/** Includes deleted functions. */
export function findWorkspaces(
  db: Db,
  ids: readonly string[],
): Promise<{ id: string; workspace_id: string }[]> {
  return db
    .selectFrom("functions")
    .select(["id", "workspace_id"])
    .where("id", "=", sql<string>`any(${sql.val([...ids])}::uuid[])`)
    .execute();
}

/** Also one that is on its way out. */
export function findAny(db: Db, id: string): Promise<Selectable<FunctionsTable> | undefined> {
  return db.selectFrom("functions").selectAll().where("id", "=", id).executeTakeFirst();
}

export async function isName(db: Db, name: string): Promise<boolean> {
  const found = await db.selectFrom("functions").select("id").where("name", "=", name).executeTakeFirst();
  return found !== undefined;
}

// ---- versions: what was deployed, and what is to be

export type VersionRow = Selectable<FunctionVersionsTable>;

/** The function's row is locked, and none of its versions is being built. */
export function insertVersion(
  tx: Db,
  row: FunctionRow,
  { id, now }: { id: string; now: Date },
): Promise<VersionRow> {
  return tx
    .insertInto("function_versions")
    .values((eb) => ({
      id,
      function_id: row.id,
      number: eb
        .selectFrom("function_versions")
        .select(sql<number>`coalesce(max(number), 0) + 1`.as("next"))
        .where("function_id", "=", row.id),
      state: "building",
      runtime: row.runtime,
      handler_code: row.handler_code,
      dependencies: JSON.stringify(row.dependencies),
      created_at: now,
    }))
    .returningAll()
    .executeTakeFirstOrThrow();
}

export function findVersion(db: Db, id: string): Promise<VersionRow | undefined> {
  return db.selectFrom("function_versions").selectAll().where("id", "=", id).executeTakeFirst();
}

export function findBuilding(
  db: Db,
  functionId: string,
): Promise<Pick<VersionRow, "id" | "number"> | undefined> {
  return db
    .selectFrom("function_versions")
    .select(["id", "number"])
    .where("function_id", "=", functionId)
    .where("state", "=", "building")
    .executeTakeFirst();
}

/** The next to be built on a host, with this server as one more that tries; undefined where none waits. */
export async function takeNextVersion(
  db: Db,
  hostId: string,
  carriedOut: readonly string[],
): Promise<string | undefined> {
  const taken = await db
    .updateTable("function_versions")
    .set((eb) => ({ host_id: hostId, attempts: eb("attempts", "+", 1) }))
    .where("id", "=", (eb) =>
      eb
        .selectFrom("function_versions")
        .select("id")
        .where("state", "=", "building")
        .where((where) => where.or([where("host_id", "is", null), where("host_id", "=", hostId)]))
        .where("id", "<>", sql<string>`all(${sql.val([...carriedOut])}::text[])`)
        .orderBy("created_at")
        .limit(1)
        .forUpdate()
        .skipLocked(),
    )
    .returning("id")
    .executeTakeFirst();
  return taken?.id;
}

/** A server that ends in good order is none that died of it. */
export async function forgetAttempt(db: Db, id: string): Promise<void> {
  await db
    .updateTable("function_versions")
    .set((eb) => ({ attempts: eb("attempts", "-", 1) }))
    .where("id", "=", id)
    .execute();
}

/** Whose a version is that is being built, with what its plan gives a build. */
export function findSubject(db: Db, versionId: string) {
  return db
    .selectFrom("function_versions")
    .innerJoin("functions", "functions.id", "function_versions.function_id")
    .innerJoin("workspaces", "workspaces.id", "functions.workspace_id")
    .select(["functions.workspace_id", "workspaces.plan"])
    .where("function_versions.id", "=", versionId)
    .where("function_versions.state", "=", "building")
    .where("functions.deleted_at", "is", null)
    .executeTakeFirst();
}

/** An earlier version with the same content whose image is there. */
export function findEqual(db: Db, version: VersionRow, hash: Buffer): Promise<VersionRow | undefined> {
  return ofFunction(db, version)
    .where("content_hash", "=", hash)
    .where("image_id", "is not", null)
    .executeTakeFirst();
}

/** What the newest version of the same dependencies was installed from. */
export async function findLock(db: Db, version: VersionRow): Promise<string | null> {
  const found = await ofFunction(db, version)
    .where(sql<boolean>`dependencies = ${JSON.stringify(version.dependencies)}::jsonb`)
    .where("lock", "is not", null)
    .executeTakeFirst();
  return found?.lock ?? null;
}

const ofFunction = (db: Db, { function_id, id }: VersionRow) =>
  db
    .selectFrom("function_versions")
    .selectAll()
    .where("function_id", "=", function_id)
    .where("id", "<>", id)
    .where("state", "in", ["live", "superseded"])
    .orderBy("number", "desc")
    .limit(1);

/** Its image is there, and is this version's from now on; false where nobody waits for it any more. */
export async function setImage(
  tx: Db,
  id: string,
  image: { imageId: string; contentHash: Buffer; lock: string | null },
): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("function_versions")
    .set({ image_id: image.imageId, content_hash: image.contentHash, lock: image.lock })
    .where("id", "=", id)
    .where("state", "=", "building")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Also one that is on its way out: whoever asks looks at `deleted_at`. Its row is locked. */
export function lockAny(tx: Db, id: string): Promise<Selectable<FunctionsTable> | undefined> {
  return tx.selectFrom("functions").selectAll().where("id", "=", id).forUpdate().executeTakeFirst();
}

/** The one that was live is superseded; versions beyond the newest `kept` of those want their images no more. */
export async function makeLive(
  tx: Db,
  version: VersionRow,
  { lock, kept, now }: { lock: string | null; kept: number; now: Date },
): Promise<void> {
  const ofIt = { function_id: version.function_id };
  await tx
    .updateTable("function_versions")
    .set({ state: "superseded" })
    .where("function_id", "=", ofIt.function_id)
    .where("state", "=", "live")
    .execute();
  await tx
    .updateTable("function_versions")
    .set({ state: "live", lock, finished_at: now })
    .where("id", "=", version.id)
    .execute();
  await tx
    .updateTable("function_versions")
    .set({ image_id: null })
    .where("function_id", "=", ofIt.function_id)
    .where("state", "=", "superseded")
    .where("id", "not in", (eb) =>
      eb
        .selectFrom("function_versions")
        .select("id")
        .where("function_id", "=", ofIt.function_id)
        .where("state", "=", "superseded")
        .orderBy("number", "desc")
        .limit(kept),
    )
    .execute();
}

/** Those that ended long before one of that number: nobody goes back to them. */
export async function forgetOld(tx: Db, functionId: string, number: number): Promise<void> {
  await tx
    .deleteFrom("function_versions")
    .where("function_id", "=", functionId)
    .where("state", "in", ["failed", "superseded"])
    .where("number", "<", number)
    .execute();
}

/** Its image is wanted no more. */
export async function endFailed(tx: Db, id: string, error: string, now: Date): Promise<void> {
  await tx
    .updateTable("function_versions")
    .set({ state: "failed", error, image_id: null, finished_at: now })
    .where("id", "=", id)
    .where("state", "=", "building")
    .execute();
}
