/**
 * Named snapshots, from which any number of sandboxes can be created, also after the original sandbox was deleted. A
 * snapshot is a row here and bytes below machines/; one transaction creates both. A snapshot that was returned to a
 * caller is complete and on disk, and no use changes it. A snapshot with damaged bytes reports the damage instead of
 * being retried.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { drop, deleteNamedSnapshot } from "#machines/snapshots/clones.ts";
import { openCursor, sealCursor } from "../cursor.ts";
import { toMoment } from "../sandboxes/schema.ts";
import { snapshotNotFound } from "./errors.ts";
import { type Snapshot, type SnapshotQuery, toSnapshot } from "./schema.ts";
import {
  countNamed,
  deleteNamed,
  findByName,
  findExpiredNamed,
  findNamed,
  listNamed,
  type NamedRow,
  extendRetention,
} from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const dayMs = 24 * 3_600_000;

const reachable = (actor: Actor): string[] => actor.workspaces.map((workspace) => workspace.id);

export async function getSnapshot(app: Pick<App, "db">, actor: Actor, id: string): Promise<NamedRow> {
  const row = await findNamed(app.db, id, reachable(actor));
  if (!row) throw snapshotNotFound();
  return row;
}

/** Finds a snapshot by id in every workspace that the caller reaches, or by name in the home workspace. */
export async function findSnapshotNamed(
  app: Pick<App, "db">,
  actor: Actor,
  idOrName: string,
): Promise<NamedRow | undefined> {
  if (idOrName.startsWith("snap_")) return findNamed(app.db, idOrName, reachable(actor));
  const [home] = actor.workspaces;
  return home && findByName(app.db, idOrName, home.id);
}

interface Position {
  createdAt: string;
  id: string;
}

export async function list(
  app: Pick<App, "db" | "secrets">,
  actor: Actor,
  query: Partial<SnapshotQuery> & { limit: number },
): Promise<{ items: Snapshot[]; next_cursor: string | null }> {
  const { order = "newest", cursor, status } = query;
  // A cursor of one order is invalid for the other.
  const place = order === "newest" ? "snapshots" : "snapshots:oldest";
  const rows = await listNamed(app.db, {
    workspaceIds: reachable(actor),
    sandboxId: query.sandbox_id,
    name: query.name,
    template: query.template,
    damaged: status?.length === 1 ? status[0] === "damaged" : undefined,
    createdAfter: toMoment(query.created_after),
    createdBefore: toMoment(query.created_before),
    order,
    from: cursor === undefined ? undefined : openCursor<Position>(app, actor, place, cursor),
    limit: query.limit + 1,
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  return {
    items: page.map(toSnapshot),
    next_cursor:
      rows.length > query.limit && last
        ? sealCursor(app, actor, place, { createdAt: last.created_at_text, id: last.id })
        : null,
  };
}

/** Deletes a snapshot. Sandboxes made from the snapshot are independent and continue. */
export async function deleteSnapshot(app: Needs, actor: Actor, id: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await deleteNamed(tx, id, { workspaceIds: reachable(actor) });
    if (!row) throw snapshotNotFound();
    await deleteNamedSnapshot(tx, id);
    const target = { kind: "snapshot", id, label: row.name ?? id };
    await recordActivity(tx, actor, "snapshot.deleted", target, row.workspace_id);
  });
  drop(app, id);
}

/** Returns the end of a snapshot's retention after its last use. */
export function keptUntil(tier: SandboxTier, from: Date): Date | null {
  const days = tierLimits[tier].pausedRetentionDays;
  return days === null ? null : new Date(from.getTime() + days * dayMs);
}

/** Records a use of the snapshot now. */
export function snapshotUsed(app: Pick<App, "db" | "clock">, id: string, tier: SandboxTier): Promise<void> {
  return extendRetention(app.db, id, keptUntil(tier, app.clock.now()));
}

/** Deletes snapshots that were unused for longer than their tier keeps them. */
export async function reclaimNamed(app: Needs): Promise<void> {
  const now = app.clock.now();
  for (const { id } of await findExpiredNamed(app.db, now)) {
    const isGone = await app.db.transaction().execute(async (tx) => {
      if (!(await deleteNamed(tx, id, { expiredBy: now }))) return false;
      await deleteNamedSnapshot(tx, id);
      return true;
    });
    if (isGone) drop(app, id);
  }
}

/** Number of a workspace's snapshots. */
export function countSnapshots(db: Db, workspaceId: string): Promise<number> {
  return countNamed(db, workspaceId);
}
