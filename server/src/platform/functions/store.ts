/** All SQL of functions. Functions for callers take the caller's workspaces as an argument. */
import { type Insertable, type Selectable, sql, type Updateable } from "kysely";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { type NextEntry, nextInTurn } from "#jobs/next-in-turn.ts";
import type { TriggerActor } from "../deployments/tables.ts";
import { interrupted, queued } from "../progress.ts";
import type { StepLogPiece } from "../step-log.ts";
import type {
  FunctionsTable,
  FunctionVersionLogsTable,
  FunctionVersionsTable,
  VersionProgress,
  VersionStep,
} from "./tables.ts";

/** A function with the progress of its running deploy. */
export type FunctionRow = Selectable<FunctionsTable> & {
  is_building: boolean;
  progress: VersionProgress | null;
};
export type FunctionChange = Updateable<FunctionsTable>;

const among = (ids: readonly string[]) => sql<string>`any(${sql.val([...ids])}::uuid[])`;

const isBuilding = sql<boolean>`exists (
  select from function_versions v where v.function_id = functions.id and v.state = 'building'
)`;

/** Progress of the running deploy. Null if no deploy runs, or if its version has not begun a step. */
const progressOfBuild = sql<VersionProgress | null>`(
  select v.progress from function_versions v where v.function_id = functions.id and v.state = 'building'
)`;

const living = (db: Db) =>
  db
    .selectFrom("functions")
    .selectAll("functions")
    .select([isBuilding.as("is_building"), progressOfBuild.as("progress")])
    .where("deleted_at", "is", null);

// ---- queries for callers

export function findOwn(
  db: Db,
  id: string,
  workspaceIds: readonly string[],
): Promise<FunctionRow | undefined> {
  return living(db).where("id", "=", id).where("workspace_id", "=", among(workspaceIds)).executeTakeFirst();
}

/** Locks the function of the caller until the transaction ends. */
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
  // A deploy may have ended while the lock was awaited, so the row is read again.
  return locked && findOwn(tx, id, workspaceIds);
}

/** Lists functions, newest first. */
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

/** Counts the functions of a workspace, and blocks creations in the workspace until the transaction ends. */
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
  return { ...made, is_building: false, progress: null };
}

// ---- changes of a locked function

export function changeRow(tx: Db, id: string, change: FunctionChange): Promise<FunctionRow> {
  return tx
    .updateTable("functions")
    .set(change)
    .where("id", "=", id)
    .returningAll("functions")
    .returning([isBuilding.as("is_building"), progressOfBuild.as("progress")])
    .executeTakeFirstOrThrow();
}

/** Marks a function as deleted, which frees its name and revokes its key. */
export async function markDeleted(tx: Db, id: string, now: Date): Promise<void> {
  await tx
    .updateTable("functions")
    .set({ deleted_at: now, name: `~${id}`, auth_mode: "none", api_key_hash: null, api_key_hint: null })
    .where("id", "=", id)
    .execute();
}

/** Deletes the row with its versions, instances and minutes. */
export async function deleteRow(db: Db, id: string): Promise<void> {
  await db.deleteFrom("functions").where("id", "=", id).where("deleted_at", "is not", null).execute();
}

// ---- queries for other folders

/** Returns functions with their workspace. Deleted functions are included. */
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

/** Returns a function of any workspace. Deleted functions are included. */
export function findAny(db: Db, id: string): Promise<Selectable<FunctionsTable> | undefined> {
  return db.selectFrom("functions").selectAll().where("id", "=", id).executeTakeFirst();
}

export async function isName(db: Db, name: string): Promise<boolean> {
  const found = await db.selectFrom("functions").select("id").where("name", "=", name).executeTakeFirst();
  return found !== undefined;
}

// ---- versions

export type VersionRow = Selectable<FunctionVersionsTable>;

/** Email address of the user behind a deploy. Null if there is none, or if the account is deleted. */
interface TriggerEmail {
  trigger_user_email: string | null;
}
export type ShownVersionRow = VersionRow & TriggerEmail;

export interface NewVersion {
  id: string;
  function_id: string;
  trigger_kind: VersionRow["trigger_kind"];
  trigger_actor: TriggerActor;
  trigger_user_id: string | null;
  created_at: Date;
  content: Pick<VersionRow, "runtime" | "handler_code" | "dependencies">;
  /** Source version of a rollback, with its image if the image is kept. */
  from?: Pick<VersionRow, "id" | "lock" | "content_hash" | "host_id" | "image_id">;
}

/** Inserts a version. The caller holds the function's lock, and no version of the function is being built. */
export function insertVersion(
  tx: Db,
  { content, from, trigger_actor, ...version }: NewVersion,
): Promise<VersionRow> {
  return tx
    .insertInto("function_versions")
    .values((eb) => ({
      ...version,
      trigger_actor: JSON.stringify(trigger_actor),
      number: eb
        .selectFrom("function_versions")
        .select(sql<number>`coalesce(max(number), 0) + 1`.as("next"))
        .where("function_id", "=", version.function_id),
      state: "building",
      runtime: content.runtime,
      handler_code: content.handler_code,
      dependencies: JSON.stringify(content.dependencies),
      progress: JSON.stringify(queued),
      ...(from && {
        rolled_back_from: from.id,
        lock: from.lock,
        content_hash: from.content_hash,
        ...(from.image_id !== null && { image_id: from.image_id, host_id: from.host_id, image_reused: true }),
      }),
    }))
    .returningAll()
    .executeTakeFirstOrThrow();
}

export function findVersion(db: Db, id: string): Promise<VersionRow | undefined> {
  return db.selectFrom("function_versions").selectAll().where("id", "=", id).executeTakeFirst();
}

/** Returns a version of a function. The caller has checked access to the function. */
export function findVersionOf(
  db: Db,
  functionId: string,
  versionId: string,
): Promise<ShownVersionRow | undefined> {
  return db
    .selectFrom("function_versions")
    .leftJoin("users", "users.id", "function_versions.trigger_user_id")
    .selectAll("function_versions")
    .select("users.email as trigger_user_email")
    .where("function_id", "=", functionId)
    .where("function_versions.id", "=", versionId)
    .executeTakeFirst();
}

/** Lists versions, newest first, without their code of up to 1 MiB each. `deleteOldVersions` bounds their number. */
export function listVersions(db: Db, functionId: string): Promise<VersionSummaryRow[]> {
  return db
    .selectFrom("function_versions")
    .leftJoin("users", "users.id", "function_versions.trigger_user_id")
    .select(summaryColumns.map((column) => `function_versions.${column}` as const))
    .select("users.email as trigger_user_email")
    .where("function_id", "=", functionId)
    .orderBy("number", "desc")
    .execute();
}

const summaryColumns = [
  "id",
  "function_id",
  "number",
  "state",
  "runtime",
  "trigger_kind",
  "trigger_actor",
  "rolled_back_from",
  "image_id",
  "image_reused",
  "progress",
  "error",
  "created_at",
  "finished_at",
] as const satisfies readonly (keyof VersionRow)[];
export type VersionSummaryRow = Pick<VersionRow, (typeof summaryColumns)[number]> & TriggerEmail;

/** Returns a version with the same content and a kept image, so that no build is needed. */
export function findKeptEqual(
  db: Db,
  { function_id, content_hash, lock }: VersionRow,
): Promise<VersionRow | undefined> {
  return db
    .selectFrom("function_versions")
    .selectAll()
    .where("function_id", "=", function_id)
    .where("content_hash", "=", content_hash)
    .where(sql<boolean>`lock is not distinct from ${lock}`)
    .where("image_id", "is not", null)
    .limit(1)
    .executeTakeFirst();
}

export async function noteVersionProgress(db: Db, id: string, progress: VersionProgress): Promise<void> {
  await db
    .updateTable("function_versions")
    .set({ progress: JSON.stringify(progress) })
    .where("id", "=", id)
    .where("state", "=", "building")
    .execute();
}

/** Resets the progress of versions that an earlier server of this host was building. */
export async function resetVersionProgress(db: Db, hostId: string): Promise<void> {
  await db
    .updateTable("function_versions")
    .set({ progress: JSON.stringify(interrupted) })
    .where("state", "=", "building")
    .where("host_id", "=", hostId)
    .execute();
}

/** Appends to a version's log. Does nothing for a version that has ended or is deleted. */
export async function appendVersionLog(
  db: Db,
  id: string,
  pieces: readonly StepLogPiece<VersionStep>[],
  isTruncated: boolean,
): Promise<void> {
  await transaction(db, async (tx) => {
    const { numUpdatedRows } = await tx
      .updateTable("function_versions")
      .set({ log_truncated: isTruncated })
      .where("id", "=", id)
      .where("state", "=", "building")
      .executeTakeFirst();
    if (numUpdatedRows === 0n) return;
    await tx
      .insertInto("function_version_logs")
      .values(pieces.map((piece) => ({ version_id: id, ...piece })))
      .execute();
  });
}

/** Returns a text for each version, which changes with the version's state and log. */
export async function versionStatesOf(
  db: Db,
  ids: readonly string[],
): Promise<[id: string, state: string][]> {
  const rows = await db
    .selectFrom("function_versions as v")
    .select((eb) => [
      "v.id",
      "v.state",
      eb
        .selectFrom("function_version_logs as l")
        .select((of) => of.fn.max("l.seq").as("seq"))
        .whereRef("l.version_id", "=", "v.id")
        .as("seq"),
    ])
    .where("v.id", "in", [...ids])
    .execute();
  return rows.map(({ id, state, seq }) => [id, `${state} ${seq ?? 0}`]);
}

/** Lists log pieces in order, up to `limit` if it is given. */
export function versionLogAfter(
  db: Db,
  id: string,
  after: number,
  limit?: number,
): Promise<Selectable<FunctionVersionLogsTable>[]> {
  let pieces = db
    .selectFrom("function_version_logs")
    .selectAll()
    .where("version_id", "=", id)
    .where("seq", ">", after)
    .orderBy("seq");
  if (limit !== undefined) pieces = pieces.limit(limit);
  return pieces.execute();
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

/** Takes the next version to build on a host, and counts the attempt. Returns undefined if none is queued. */
export async function takeNextVersion(
  db: Db,
  host: { id: string; atOnce: number; executing: readonly string[]; recent: readonly string[] },
): Promise<NextEntry | undefined> {
  const executing = sql<string>`any(${sql.val([...host.executing])}::text[])`;
  const building = db
    .selectFrom("function_versions as v")
    .innerJoin("functions", "functions.id", "v.function_id")
    .select(["v.id", "functions.workspace_id", "v.created_at"])
    .where("v.state", "=", "building")
    .where((eb) => eb.or([eb("v.host_id", "is", null), eb("v.host_id", "=", host.id)]));
  const rows = {
    waiting: building.where((eb) => eb.not(eb("v.id", "=", executing))),
    running: building.where("v.id", "=", executing),
  };
  for (;;) {
    const next = await nextInTurn(db, rows, { recent: host.recent, places: host.atOnce });
    if (!next) return undefined;
    const taken = await db
      .updateTable("function_versions")
      .set((eb) => ({ host_id: host.id, attempts: eb("attempts", "+", 1) }))
      .where("id", "=", next.id)
      .where("state", "=", "building")
      .where((eb) => eb.or([eb("host_id", "is", null), eb("host_id", "=", host.id)]))
      .returning("id")
      .executeTakeFirst();
    // Otherwise a request deleted the function after the version was chosen.
    if (taken) return next;
  }
}

/** Removes an attempt from the count, because the server stopped gracefully. */
export async function uncountAttempt(db: Db, id: string): Promise<void> {
  await db
    .updateTable("function_versions")
    .set((eb) => ({ attempts: eb("attempts", "-", 1) }))
    .where("id", "=", id)
    .execute();
}

/** Returns the function and the plan of a version that is being built. */
export function findSubject(db: Db, versionId: string) {
  return db
    .selectFrom("function_versions")
    .innerJoin("functions", "functions.id", "function_versions.function_id")
    .innerJoin("workspaces", "workspaces.id", "functions.workspace_id")
    .select(["functions.workspace_id", "workspaces.plan", "workspaces.held_since"])
    .where("function_versions.id", "=", versionId)
    .where("function_versions.state", "=", "building")
    .where("functions.deleted_at", "is", null)
    .executeTakeFirst();
}

/** Returns an earlier version with the same content and a kept image. */
export function findEqual(db: Db, version: VersionRow, hash: Buffer): Promise<VersionRow | undefined> {
  return ofFunction(db, version)
    .where("content_hash", "=", hash)
    .where("image_id", "is not", null)
    .executeTakeFirst();
}

/** Returns the lock of the newest version with the same dependencies; null if there is none. */
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

/** Stores the image of a version. Returns false if the version has ended or its function is deleted. */
export async function setImage(
  tx: Db,
  id: string,
  image: { imageId: string; contentHash: Buffer; lock: string | null; isReused?: boolean },
): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("function_versions")
    .set({
      image_id: image.imageId,
      content_hash: image.contentHash,
      lock: image.lock,
      image_reused: image.isReused ?? false,
    })
    .where("id", "=", id)
    .where("state", "=", "building")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Locks a function. Deleted functions are included, so the caller checks `deleted_at`. */
export function lockAny(tx: Db, id: string): Promise<Selectable<FunctionsTable> | undefined> {
  return tx.selectFrom("functions").selectAll().where("id", "=", id).forUpdate().executeTakeFirst();
}

/** Makes a version live. Keeps the live image and the newest `kept` others, and releases older ones. */
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
    .set({ state: "live", lock, progress: null, finished_at: now })
    .where("id", "=", version.id)
    .execute();
  await tx
    .updateTable("function_versions")
    .set({ image_id: null })
    .where("function_id", "=", ofIt.function_id)
    .where("state", "=", "superseded")
    // Images are counted, not versions, because a rollback shares the image of its source version.
    .where("image_id", "not in", (eb) =>
      eb
        .selectFrom("function_versions")
        .select((of) => of.ref("image_id").$notNull().as("image_id"))
        .where("function_id", "=", ofIt.function_id)
        .where("image_id", "is not", null)
        .groupBy("image_id")
        .orderBy((of) => of.fn.max("number"), "desc")
        .limit(kept + 1),
    )
    .execute();
}

/** Deletes failed and superseded versions with a lower number. */
export async function deleteOldVersions(tx: Db, functionId: string, number: number): Promise<void> {
  await tx
    .deleteFrom("function_versions")
    .where("function_id", "=", functionId)
    .where("state", "in", ["failed", "superseded"])
    .where("number", "<", number)
    .execute();
}

/** Fails a version and releases its image. */
export async function endFailed(tx: Db, id: string, error: string, now: Date): Promise<void> {
  await tx
    .updateTable("function_versions")
    .set({ state: "failed", error, image_id: null, progress: null, finished_at: now })
    .where("id", "=", id)
    .where("state", "=", "building")
    .execute();
}
