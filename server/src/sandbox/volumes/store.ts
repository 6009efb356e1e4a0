/**
 * All SQL of the volumes table. The workspaces a caller can reach are an argument of the functions for callers.
 */
import { type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { SandboxVolumesTable } from "./tables.ts";

export type VolumeRow = Selectable<SandboxVolumesTable>;

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

// ---- operations of callers

/** Counts a workspace's volumes, and blocks new volumes until this transaction ends. */
export async function lockAndCountVolumes(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 10))`.execute(tx);
  return countVolumeRows(tx, workspaceId);
}

export async function countVolumeRows(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("sandbox_volumes")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("deleted_at", "is", null)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Inserts a volume. Undefined if the name is taken. */
export function insertVolume(
  tx: Db,
  volume: Pick<VolumeRow, "id" | "workspace_id" | "name" | "size_gb" | "region" | "host_id" | "created_at">,
): Promise<VolumeRow | undefined> {
  return tx
    .insertInto("sandbox_volumes")
    .values({ ...volume, sandbox_id: null, moving_to: null, deleted_at: null })
    .onConflict((conflict) =>
      conflict.columns(["workspace_id", "name"]).where("deleted_at", "is", null).doNothing(),
    )
    .returningAll()
    .executeTakeFirst();
}

/** Finds a volume by id or name, and locks its row until this transaction ends. */
export function lockVolume(
  tx: Db,
  reference: string,
  workspaceIds: readonly string[],
): Promise<VolumeRow | undefined> {
  return tx
    .selectFrom("sandbox_volumes")
    .selectAll()
    .where(reference.startsWith("vol_") ? "id" : "name", "=", reference)
    .where("workspace_id", "=", among(workspaceIds))
    .where("deleted_at", "is", null)
    .forUpdate()
    .executeTakeFirst();
}

/** Lists volumes, newest first. `created_at_text` keeps the microseconds for the cursor, which a Date drops. */
export function listVolumeRows(
  db: Db,
  workspaceIds: readonly string[],
  page: { before?: { createdAt: string; id: string } | undefined; limit: number },
): Promise<(VolumeRow & { created_at_text: string })[]> {
  let query = db
    .selectFrom("sandbox_volumes")
    .selectAll()
    .select(sql<string>`created_at::text`.as("created_at_text"))
    .where("workspace_id", "=", among(workspaceIds))
    .where("deleted_at", "is", null)
    .orderBy("created_at", "desc")
    .orderBy("id", "desc")
    .limit(page.limit);
  if (page.before) {
    const { createdAt, id } = page.before;
    query = query.where(sql<boolean>`(created_at, id) < (${createdAt}::timestamptz, ${id})`);
  }
  return query.execute();
}

// ---- changes of a volume; the caller has locked its row or is its only user

export function changeVolume(
  tx: Db,
  id: string,
  change: Partial<Pick<VolumeRow, "sandbox_id" | "moving_to" | "deleted_at" | "is_made">>,
): Promise<VolumeRow> {
  return tx
    .updateTable("sandbox_volumes")
    .set(change)
    .where("id", "=", id)
    .returningAll()
    .executeTakeFirstOrThrow();
}

export async function releaseRow(tx: Db, sandboxId: string): Promise<void> {
  await tx
    .updateTable("sandbox_volumes")
    .set({ sandbox_id: null })
    .where("sandbox_id", "=", sandboxId)
    .execute();
}

export function findVolume(db: Db, id: string): Promise<VolumeRow | undefined> {
  return db.selectFrom("sandbox_volumes").selectAll().where("id", "=", id).executeTakeFirst();
}

/** Ends a move in `region`; undefined if the volume was not moving there. */
export function endMoveRow(
  tx: Db,
  id: string,
  move: { to: string; region: string },
): Promise<VolumeRow | undefined> {
  return tx
    .updateTable("sandbox_volumes")
    .set({ region: move.region, moving_to: null })
    .where("id", "=", id)
    .where("moving_to", "=", move.to)
    .returningAll()
    .executeTakeFirst();
}

export async function deleteRow(db: Db, id: string): Promise<void> {
  await db.deleteFrom("sandbox_volumes").where("id", "=", id).where("deleted_at", "is not", null).execute();
}

export function volumesOfHost(db: Db, hostId: string): Promise<VolumeRow[]> {
  return db.selectFrom("sandbox_volumes").selectAll().where("host_id", "=", hostId).execute();
}
