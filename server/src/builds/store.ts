/** All SQL of the build tables. */
import { type Insertable, type Selectable, sql } from "kysely";
import { transaction } from "#db/db.ts";
import type { Db, Transaction } from "#schema.ts";
import { nextInTurn } from "#jobs/next-in-turn.ts";
import type { AppImagesTable, BuildLogsTable, BuildsTable, BuildStep } from "./tables.ts";

export type BuildRow = Selectable<BuildsTable>;
export type BuildLogRow = Selectable<BuildLogsTable>;

/** Workspace id for builds that are older than the column. */
const noWorkspace = "00000000-0000-0000-0000-000000000000";

export async function insertBuild(
  tx: Db,
  build: Pick<
    Insertable<BuildsTable>,
    "id" | "workspace_id" | "owner_kind" | "host_id" | "base" | "steps" | "network" | "dockerfile"
  >,
): Promise<void> {
  await tx
    .insertInto("builds")
    .values({ ...build, status: "queued" })
    .execute();
}

export function findBuild(db: Db, id: string): Promise<BuildRow | undefined> {
  return db.selectFrom("builds").selectAll().where("id", "=", id).executeTakeFirst();
}

/**
 * Marks the next queued build as running, and returns it. Returns undefined if none is queued, or if `atOnce` builds
 * run.
 */
export function takeNext(
  db: Db,
  { hostId, atOnce, recent }: { hostId: string; atOnce: number; recent: readonly string[] },
  now: Date,
): Promise<{ build: BuildRow; payerId: string } | undefined> {
  return transaction(db, async (tx) => {
    await sql`select pg_advisory_xact_lock(hashtextextended(${hostId}, 4))`.execute(tx);
    const { count } = await tx
      .selectFrom("builds")
      .select((eb) => eb.fn.countAll<number>().as("count"))
      .where("host_id", "=", hostId)
      .where("status", "=", "running")
      .executeTakeFirstOrThrow();
    if (Number(count) >= atOnce) return undefined;
    const builds = tx
      .selectFrom("builds")
      .select([
        "id",
        sql<string>`coalesce(workspace_id, ${noWorkspace}::uuid)`.as("workspace_id"),
        "created_at",
      ])
      .where("host_id", "=", hostId);
    const rows = {
      waiting: builds.where("status", "=", "queued"),
      running: builds.where("status", "=", "running"),
    };
    for (;;) {
      const next = await nextInTurn(tx, rows, { recent, places: atOnce });
      if (!next) return undefined;
      const build = await tx
        .updateTable("builds")
        .set((eb) => ({
          status: "running",
          attempts: eb("attempts", "+", 1),
          started_at: now,
          step: null,
          progress: null,
          log_bytes: 0,
          log_truncated: false,
        }))
        .where("id", "=", next.id)
        .where("status", "=", "queued")
        .returningAll()
        .executeTakeFirst();
      // The build was dropped between its choice and this update.
      if (!build) continue;
      // The new attempt writes the log from its start.
      await tx.deleteFrom("build_logs").where("build_id", "=", build.id).execute();
      return { build, payerId: next.payerId };
    }
  });
}

/** Puts a running build back into the queue, and does not count the attempt. */
export async function requeueUncounted(db: Db, id: string): Promise<void> {
  await db
    .updateTable("builds")
    .set((eb) => ({ status: "queued", attempts: eb("attempts", "-", 1) }))
    .where("id", "=", id)
    .where("status", "=", "running")
    .execute();
}

/** Lists builds that a crashed server left running. */
export function interruptedBuilds(db: Db, hostId: string): Promise<BuildRow[]> {
  return db
    .selectFrom("builds")
    .selectAll()
    .where("host_id", "=", hostId)
    .where("status", "=", "running")
    .execute();
}

export async function requeue(db: Db, id: string): Promise<void> {
  await db
    .updateTable("builds")
    .set({ status: "queued" })
    .where("id", "=", id)
    .where("status", "=", "running")
    .execute();
}

/** Stores the current step. Returns false if the build was dropped. */
export async function saveStep(db: Db, id: string, step: number): Promise<boolean> {
  const { numUpdatedRows } = await db
    .updateTable("builds")
    .set({ step })
    .where("id", "=", id)
    .where("status", "=", "running")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

/** Stores the progress of a running build. */
export async function saveProgress(db: Db, id: string, progress: BuildStep): Promise<void> {
  await db
    .updateTable("builds")
    .set({ progress: JSON.stringify(progress) })
    .where("id", "=", id)
    .where("status", "=", "running")
    .execute();
}

/**
 * Locks the build's row until the transaction ends, so that a concurrent drop waits and finds the image. Returns false
 * if the build was dropped.
 */
export async function lockBuild(tx: Db, id: string): Promise<boolean> {
  const row = await tx
    .selectFrom("builds")
    .select("id")
    .where("id", "=", id)
    .forKeyShare()
    .executeTakeFirst();
  return row !== undefined;
}

/** Ends a build. Returns false if the build was dropped, or has already ended. */
export async function endBuild(
  tx: Db,
  id: string,
  end: { status: "succeeded" | "failed"; error: string | null; at: Date },
): Promise<boolean> {
  const { numUpdatedRows } = await tx
    .updateTable("builds")
    .set({ status: end.status, error: end.error, ended_at: end.at })
    .where("id", "=", id)
    .where("status", "=", "running")
    .executeTakeFirst();
  return numUpdatedRows > 0n;
}

export async function deleteBuild(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("builds").where("id", "=", id).execute();
}

/**
 * Returns the ids of images to keep: requested images, images that are being built, and base images of queued and
 * running builds.
 */
export async function wantedImages(db: Db, hostId: string): Promise<Set<string>> {
  const rows = await db
    .selectFrom("builds")
    .select("id")
    .where("host_id", "=", hostId)
    .where("status", "<>", "failed")
    .union(
      db
        .selectFrom("builds")
        .select("base as id")
        .where("host_id", "=", hostId)
        .where("status", "in", ["queued", "running"]),
    )
    .execute();
  return new Set(rows.map(({ id }) => id));
}

/** Appends to the log of a running build. Does nothing for a build that does not run. */
export async function appendLog(
  db: Db,
  id: string,
  piece: { step: number; at: Date; text: string; truncated: boolean },
): Promise<void> {
  await transaction(db, async (tx) => {
    const { numUpdatedRows } = await tx
      .updateTable("builds")
      .set((eb) => ({
        log_bytes: eb("log_bytes", "+", Buffer.byteLength(piece.text)),
        log_truncated: piece.truncated,
      }))
      .where("id", "=", id)
      .where("status", "=", "running")
      .executeTakeFirst();
    if (numUpdatedRows === 0n) return;
    const { step, at, text } = piece;
    await tx.insertInto("build_logs").values({ build_id: id, step, at, text }).execute();
  });
}

export function logAfter(db: Db, id: string, after: number, limit: number): Promise<BuildLogRow[]> {
  return db
    .selectFrom("build_logs")
    .selectAll()
    .where("build_id", "=", id)
    .where("seq", ">", after)
    .orderBy("seq")
    .limit(limit)
    .execute();
}

/** Returns a text for each build, which changes with the build's status and log. */
export async function statesOf(db: Db, ids: readonly string[]): Promise<[id: string, state: string][]> {
  const rows = await db
    .selectFrom("builds")
    .select(["id", "status", "attempts", "log_bytes"])
    .where("id", "in", [...ids])
    .execute();
  return rows.map(({ id, status, attempts, log_bytes }) => [id, `${status} ${attempts} ${log_bytes}`]);
}

/** True if the machine belongs to a build with a restricted network. */
export async function isRestrictedBuild(db: Db, machine: string): Promise<boolean> {
  const row = await db
    .selectFrom("machines")
    .innerJoin("builds", "builds.id", "machines.owner_id")
    .select("machines.id")
    .where("machines.id", "=", machine)
    .where("machines.owner_kind", "=", "build")
    .where("machines.desired", "<>", "removed")
    .where("machines.network", "=", "restricted")
    .executeTakeFirst();
  return row !== undefined;
}

export type AppImageRow = Selectable<AppImagesTable>;

/** Returns the project's next image number, and blocks further numbers of the project until the transaction ends. */
export async function nextNumber(tx: Db, projectId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${projectId}, 13))`.execute(tx);
  const { number } = await tx
    .selectFrom("app_images")
    .select((eb) => eb.fn.coalesce(eb.fn.max("number"), sql<number>`0`).as("number"))
    .where("project_id", "=", projectId)
    .executeTakeFirstOrThrow();
  return number + 1;
}

export function insertImage(tx: Db, image: Insertable<AppImagesTable>): Promise<AppImageRow> {
  return tx.insertInto("app_images").values(image).returningAll().executeTakeFirstOrThrow();
}

export function findImage(db: Db, projectId: string, number: number): Promise<AppImageRow | undefined> {
  return db
    .selectFrom("app_images")
    .selectAll()
    .where("project_id", "=", projectId)
    .where("number", "=", number)
    .where("pruned_at", "is", null)
    .executeTakeFirst();
}

export function findImageByKey(
  db: Db,
  of: { projectId: string; hostId: string; buildKey: Buffer },
): Promise<AppImageRow | undefined> {
  return db
    .selectFrom("app_images")
    .selectAll()
    .where("project_id", "=", of.projectId)
    .where("host_id", "=", of.hostId)
    .where("build_key", "=", of.buildKey)
    .where("pruned_at", "is", null)
    .orderBy("number", "desc")
    .limit(1)
    .executeTakeFirst();
}

/** Lists the project's images, newest first. */
export function imagesOfProject(db: Db, projectId: string): Promise<AppImageRow[]> {
  return db
    .selectFrom("app_images")
    .selectAll()
    .where("project_id", "=", projectId)
    .where("pruned_at", "is", null)
    .orderBy("number", "desc")
    .execute();
}

export async function markPruned(tx: Db, ids: readonly string[], now: Date): Promise<void> {
  if (ids.length === 0) return;
  await tx
    .updateTable("app_images")
    .set({ pruned_at: now })
    .where("id", "in", [...ids])
    .where("pruned_at", "is", null)
    .execute();
}

/**
 * Returns the ids of a host's images that a row names. Projects, function versions and templates name images, and
 * unfinished template builds name their bases.
 */
export async function wantedAppImages(db: Db, hostId: string): Promise<Set<string>> {
  const rows = await db
    .selectFrom("app_images")
    .select("id")
    .where("host_id", "=", hostId)
    .where("pruned_at", "is", null)
    .unionAll((eb) =>
      eb
        .selectFrom("function_versions")
        .select((of) => of.ref("image_id").$notNull().as("id"))
        .where("image_id", "is not", null),
    )
    .unionAll((eb) =>
      eb
        .selectFrom("builds")
        .select("id")
        .where("host_id", "=", hostId)
        .where("dockerfile", "is not", null)
        .where("status", "<>", "failed"),
    )
    .unionAll((eb) =>
      eb
        .selectFrom("builds")
        .select("base as id")
        .where("host_id", "=", hostId)
        .where("status", "in", ["queued", "running"]),
    )
    .execute();
  return new Set(rows.map(({ id }) => id));
}

/** Stores a scan, and returns the scan that it replaces. The image's row is locked until the transaction ends. */
export async function saveScan(tx: Transaction, id: string, scan: string): Promise<unknown> {
  const row = await tx
    .selectFrom("app_images")
    .select("scan")
    .where("id", "=", id)
    .forNoKeyUpdate()
    .executeTakeFirst();
  await tx.updateTable("app_images").set({ scan }).where("id", "=", id).execute();
  return row?.scan ?? null;
}

/**
 * Lists scans of the project's other images, newest first. Locks the scans of the project until the transaction ends,
 * so that the later of two concurrent scans sees the earlier one.
 */
export async function listOtherScans(
  tx: Transaction,
  { projectId, exceptId, limit }: { projectId: string; exceptId: string; limit: number },
): Promise<unknown[]> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${projectId}, 18))`.execute(tx);
  const rows = await tx
    .selectFrom("app_images")
    .select("scan")
    .where("project_id", "=", projectId)
    .where("id", "!=", exceptId)
    .where("scan", "is not", null)
    .orderBy(sql`scan ->> 'scannedAt'`, "desc")
    .limit(limit)
    .execute();
  return rows.map(({ scan }) => scan);
}
