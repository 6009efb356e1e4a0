/**
 * All SQL of backups and restores, and of the add-ons' schedule columns. Callers check access on the add-on, and pass
 * its id.
 */
import type { Insertable, Selectable, Updateable } from "kysely";
import type { Plan } from "#accounts/roles.ts";
import type { Db } from "#schema.ts";
import type { BackupsTable, RestoresTable } from "./tables.ts";
import type { JobDecision } from "./jobs/cancellation.ts";

export type BackupRow = Selectable<BackupsTable>;
export type RestoreRow = Selectable<RestoresTable>;
type BackupResult = Pick<Updateable<BackupsTable>, "size_bytes" | "sha256" | "contents" | "expires_at">;

const underWay = ["pending", "running"] as const;

/** Locks the add-on's row until the transaction ends. Returns false if the add-on is deleted. */
export async function lockAddon(tx: Db, addonId: string): Promise<boolean> {
  const row = await tx
    .selectFrom("addons")
    .select("id")
    .where("id", "=", addonId)
    .where("deleted_at", "is", null)
    .forUpdate()
    .executeTakeFirst();
  return row !== undefined;
}

export function listRows(db: Db, addonId: string): Promise<BackupRow[]> {
  return db
    .selectFrom("backups")
    .selectAll()
    .where("addon_id", "=", addonId)
    .where("deleted_at", "is", null)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .execute();
}

export function findOf(db: Db, addonId: string, id: string): Promise<BackupRow | undefined> {
  return db
    .selectFrom("backups")
    .selectAll()
    .where("addon_id", "=", addonId)
    .where("id", "=", id)
    .where("deleted_at", "is", null)
    .executeTakeFirst();
}

/** Returns a backup without an access check. Deleted backups are included. */
export function findById(db: Db, id: string): Promise<BackupRow | undefined> {
  return db.selectFrom("backups").selectAll().where("id", "=", id).executeTakeFirst();
}

/** Returns the number of manual backups since a time. Deleted backups count, failed ones do not. */
export async function countManual(db: Db, addonId: string, since: Date): Promise<number> {
  const { count } = await db
    .selectFrom("backups")
    .select((eb) => eb.fn.countAll<string>().as("count"))
    .where("addon_id", "=", addonId)
    .where("kind", "=", "manual")
    .where("status", "!=", "failed")
    .where("created_at", ">=", since)
    .executeTakeFirstOrThrow();
  return Number(count);
}

export async function findRunning(db: Db, addonId: string): Promise<{ backup: boolean; restore: boolean }> {
  const backup = await db
    .selectFrom("backups")
    .select("id")
    .where("addon_id", "=", addonId)
    .where("status", "in", underWay)
    .executeTakeFirst();
  const restore = await db
    .selectFrom("restores")
    .select("id")
    .where("addon_id", "=", addonId)
    .where("status", "=", "running")
    .executeTakeFirst();
  return { backup: backup !== undefined, restore: restore !== undefined };
}

export function insert(db: Db, row: Insertable<BackupsTable>): Promise<BackupRow> {
  return db.insertInto("backups").values(row).returningAll().executeTakeFirstOrThrow();
}

/** Starts one more attempt. Returns undefined if the backup has ended or is deleted. */
export function startAttempt(db: Db, id: string, key: string, now: Date): Promise<BackupRow | undefined> {
  return db
    .updateTable("backups")
    .set((eb) => ({ status: "running", blob_key: key, attempts: eb("attempts", "+", 1), started_at: now }))
    .where("id", "=", id)
    .where("status", "in", underWay)
    .returningAll()
    .executeTakeFirst();
}

/** Removes an attempt from the count, because it ended with the server. */
export async function uncountAttempt(db: Db, id: string): Promise<void> {
  await db
    .updateTable("backups")
    .set((eb) => ({ attempts: eb("attempts", "-", 1) }))
    .where("id", "=", id)
    .where("status", "=", "running")
    .execute();
}

/** Completes a backup. Returns false if another run ended the backup first. */
export async function complete(db: Db, id: string, result: BackupResult, now: Date): Promise<boolean> {
  const row = await db
    .updateTable("backups")
    .set({ ...result, status: "completed", verified_at: now, finished_at: now, error: null })
    .where("id", "=", id)
    .where("status", "=", "running")
    .where("deleted_at", "is", null)
    .returning("id")
    .executeTakeFirst();
  return row !== undefined;
}

/** Fails a backup. `key` names bytes that could not be deleted; the next sweep deletes them. */
export function fail(
  db: Db,
  id: string,
  { error, key }: { error: string; key: string | null },
  now: Date,
): Promise<BackupRow | undefined> {
  return db
    .updateTable("backups")
    .set({ status: "failed", error, blob_key: key, finished_at: now })
    .where("id", "=", id)
    .where("status", "in", underWay)
    .returningAll()
    .executeTakeFirst();
}

/** Returns whether the backup may continue. `cancel`: the backup or its add-on was deleted. */
export async function decideBackup(db: Db, id: string): Promise<JobDecision> {
  const row = await db
    .selectFrom("backups")
    .innerJoin("addons", "addons.id", "backups.addon_id")
    .innerJoin("projects", "projects.id", "addons.project_id")
    .innerJoin("workspaces", "workspaces.id", "projects.workspace_id")
    .select("workspaces.held_since")
    .where("backups.id", "=", id)
    .where("backups.deleted_at", "is", null)
    .where("addons.deleted_at", "is", null)
    .executeTakeFirst();
  if (!row) return "cancel";
  return row.held_since === null ? "continue" : "suspend";
}

export async function markDeleted(db: Db, id: string, now: Date): Promise<void> {
  await db
    .updateTable("backups")
    .set({ deleted_at: now })
    .where("id", "=", id)
    .where("deleted_at", "is", null)
    .execute();
}

export async function clearBlobKey(db: Db, id: string): Promise<void> {
  await db.updateTable("backups").set({ blob_key: null }).where("id", "=", id).execute();
}

export async function isBeingRestored(db: Db, id: string): Promise<boolean> {
  const row = await db
    .selectFrom("restores")
    .select("id")
    .where("backup_id", "=", id)
    .where("status", "=", "running")
    .executeTakeFirst();
  return row !== undefined;
}

/** Lists backups to prune: expired ones, and deleted or failed ones whose bytes still exist. */
export function listToRemove(
  db: Db,
  now: Date,
): Promise<Pick<BackupRow, "id" | "blob_key" | "status" | "expires_at">[]> {
  return db
    .selectFrom("backups as b")
    .select(["b.id", "b.blob_key", "b.status", "b.expires_at"])
    .where("b.status", "in", ["completed", "failed"])
    .where((eb) =>
      eb.or([
        eb.and([eb("b.deleted_at", "is", null), eb("b.expires_at", "<=", now)]),
        eb.and([eb("b.deleted_at", "is not", null), eb("b.blob_key", "is not", null)]),
        eb.and([eb("b.status", "=", "failed"), eb("b.blob_key", "is not", null)]),
      ]),
    )
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("restores as r")
            .select("r.id")
            .whereRef("r.backup_id", "=", "b.id")
            .where("r.status", "=", "running"),
        ),
      ),
    )
    .execute();
}

/** Deletes rows of deleted backups that no longer count for a quota. */
export async function deleteOldRows(db: Db, deletedBefore: Date): Promise<void> {
  await db
    .deleteFrom("backups")
    .where("blob_key", "is", null)
    .where("deleted_at", "<", deletedBefore)
    .where("status", "in", ["completed", "failed"])
    .execute();
}

/**
 * Returns the ids of pending and running backups and restores, of one add-on or of all. Interrupted ones are included.
 * Safety backups are left out, because the restore's job makes them.
 */
export async function listUnfinished(
  db: Db,
  addonId?: string,
): Promise<{ backups: string[]; restores: string[] }> {
  const backups = await db
    .selectFrom("backups as b")
    .select("b.id")
    .where("b.status", "in", underWay)
    .where((eb) =>
      eb.not(
        eb.exists(
          eb
            .selectFrom("restores as r")
            .select("r.id")
            .whereRef("r.safety_backup_id", "=", "b.id")
            .where("r.status", "=", "running"),
        ),
      ),
    )
    .$if(addonId !== undefined, (query) => query.where("b.addon_id", "=", addonId!))
    .execute();
  const restores = await db
    .selectFrom("restores")
    .select("id")
    .where("status", "=", "running")
    .$if(addonId !== undefined, (query) => query.where("addon_id", "=", addonId!))
    .execute();
  return { backups: backups.map(({ id }) => id), restores: restores.map(({ id }) => id) };
}

/** Returns the workspace of a backup or restore; undefined if its add-on is deleted. */
export async function findWorkspace(
  db: Db,
  of: { backup: string } | { restore: string },
): Promise<string | undefined> {
  const [table, id] =
    "backup" in of ? (["backups", of.backup] as const) : (["restores", of.restore] as const);
  const row = await db
    .selectFrom("addons as a")
    .innerJoin("projects as p", "p.id", "a.project_id")
    .select("p.workspace_id")
    .where("a.id", "=", (eb) => eb.selectFrom(table).select("addon_id").where("id", "=", id))
    .executeTakeFirst();
  return row?.workspace_id;
}

/** True if the workspace's machines are frozen by a suspension. */
export async function isHeld(db: Db, workspaceId: string): Promise<boolean> {
  const row = await db
    .selectFrom("workspaces")
    .select("id")
    .where("id", "=", workspaceId)
    .where("held_since", "is not", null)
    .executeTakeFirst();
  return row !== undefined;
}

// ---- schedule

export interface Due {
  id: string;
  due_at: Date;
  missed_at: Date | null;
  plan: Plan;
}

export async function listDue(db: Db, now: Date): Promise<Due[]> {
  return db
    .selectFrom("addons as a")
    .innerJoin("projects as p", "p.id", "a.project_id")
    .innerJoin("workspaces as w", "w.id", "p.workspace_id")
    .select(["a.id", "a.next_backup_at as due_at", "a.backup_missed_at as missed_at", "w.plan"])
    .where("a.auto_backup", "=", true)
    .where("a.deleted_at", "is", null)
    .where("w.held_since", "is", null)
    .where("a.next_backup_at", "<=", now)
    .$narrowType<{ due_at: Date }>()
    .execute();
}

export async function setSchedule(
  db: Db,
  addonId: string,
  schedule: { isOn: boolean; nextAt: Date | null },
): Promise<void> {
  await db
    .updateTable("addons")
    .set({ auto_backup: schedule.isOn, next_backup_at: schedule.nextAt, backup_missed_at: null })
    .where("id", "=", addonId)
    .execute();
}

export async function recordMissed(db: Db, addonId: string, dueAt: Date): Promise<void> {
  await db.updateTable("addons").set({ backup_missed_at: dueAt }).where("id", "=", addonId).execute();
}

// ---- restores

export function insertRestore(db: Db, row: Insertable<RestoresTable>): Promise<RestoreRow> {
  return db.insertInto("restores").values(row).returningAll().executeTakeFirstOrThrow();
}

export function listRestores(db: Db, addonId: string): Promise<RestoreRow[]> {
  return db
    .selectFrom("restores")
    .selectAll()
    .where("addon_id", "=", addonId)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(100)
    .execute();
}

export function findRestore(db: Db, id: string): Promise<RestoreRow | undefined> {
  return db.selectFrom("restores").selectAll().where("id", "=", id).executeTakeFirst();
}

export function startRestoreAttempt(db: Db, id: string): Promise<RestoreRow | undefined> {
  return db
    .updateTable("restores")
    .set((eb) => ({ attempts: eb("attempts", "+", 1) }))
    .where("id", "=", id)
    .where("status", "=", "running")
    .returningAll()
    .executeTakeFirst();
}

export async function uncountRestoreAttempt(db: Db, id: string): Promise<void> {
  await db
    .updateTable("restores")
    .set((eb) => ({ attempts: eb("attempts", "-", 1) }))
    .where("id", "=", id)
    .where("status", "=", "running")
    .execute();
}

/** Ends a restore. `isInDoubt`: the result is unknown since the time that `recordDoubt` recorded. */
export function endRestore(
  db: Db,
  id: string,
  { isInDoubt, ...end }: { status: "completed" | "failed"; error: string | null; isInDoubt: boolean },
  now: Date,
): Promise<RestoreRow | undefined> {
  return db
    .updateTable("restores")
    .set({ ...end, ...(isInDoubt ? {} : { in_doubt_since: null }), finished_at: now })
    .where("id", "=", id)
    .where("status", "=", "running")
    .returningAll()
    .executeTakeFirst();
}

/** Records the time since which the restore's result is unknown. Returns an earlier recorded time, if there is one. */
export async function recordDoubt(db: Db, id: string, now: Date): Promise<Date> {
  const { in_doubt_since: since } = await db
    .updateTable("restores")
    .set((eb) => ({ in_doubt_since: eb.fn.coalesce("in_doubt_since", eb.val(now)) }))
    .where("id", "=", id)
    .returning("in_doubt_since")
    .executeTakeFirstOrThrow();
  return since ?? now;
}

/** Returns whether the restore may continue. `cancel`: the restore has ended, or its add-on was deleted. */
export async function decideRestore(db: Db, id: string): Promise<JobDecision> {
  const row = await db
    .selectFrom("restores")
    .innerJoin("addons", "addons.id", "restores.addon_id")
    .innerJoin("projects", "projects.id", "addons.project_id")
    .innerJoin("workspaces", "workspaces.id", "projects.workspace_id")
    .select("workspaces.held_since")
    .where("restores.id", "=", id)
    .where("restores.status", "=", "running")
    .where("addons.deleted_at", "is", null)
    .executeTakeFirst();
  if (!row) return "cancel";
  return row.held_since === null ? "continue" : "suspend";
}
