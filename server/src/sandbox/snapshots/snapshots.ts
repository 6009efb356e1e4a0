/**
 * Snapshots that are kept, under an id and a name of the caller's choice, to begin sandboxes from: as often as one likes,
 * also when the sandbox they were taken of is long gone. A snapshot is a row here and its bytes below machines/, both
 * from one transaction on. This folder promises that a snapshot which was answered is whole and on disk, that nothing
 * it is used for changes it, and that one whose bytes are damaged says so instead of being tried again and again.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { drop, forgetNamed } from "#machines/snapshots/clones.ts";
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
  prolong,
} from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const dayMs = 24 * 3_600_000;

const reachable = (actor: Actor): string[] => actor.workspaces.map((workspace) => workspace.id);

export async function getSnapshot(app: Pick<App, "db">, actor: Actor, id: string): Promise<NamedRow> {
  const row = await findNamed(app.db, id, reachable(actor));
  if (!row) throw snapshotNotFound();
  return row;
}

/** Finds by id in every workspace that the caller reaches, or by name in the home workspace. */
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
  // A cursor of one order is invalid in the other.
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

/** Sandboxes that were made from it are their own and run on. */
export async function deleteSnapshot(app: Needs, actor: Actor, id: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await deleteNamed(tx, id, { workspaceIds: reachable(actor) });
    if (!row) throw snapshotNotFound();
    await forgetNamed(tx, id);
    const target = { kind: "snapshot", id, label: row.name ?? id };
    await recordActivity(tx, actor, "snapshot.deleted", target, row.workspace_id);
  });
  drop(app, id);
}

/** How long a snapshot is kept after its last use. */
export function keptUntil(tier: SandboxTier, from: Date): Date | null {
  const days = tierLimits[tier].pausedRetentionDays;
  return days === null ? null : new Date(from.getTime() + days * dayMs);
}

/** It was used just now. */
export function snapshotUsed(app: Pick<App, "db" | "clock">, id: string, tier: SandboxTier): Promise<void> {
  return prolong(app.db, id, keptUntil(tier, app.clock.now()));
}

/** Deletes what was not used for longer than its tier keeps it. */
export async function reclaimNamed(app: Needs): Promise<void> {
  const now = app.clock.now();
  for (const { id } of await findExpiredNamed(app.db, now)) {
    const isGone = await app.db.transaction().execute(async (tx) => {
      if (!(await deleteNamed(tx, id, { expiredBy: now }))) return false;
      await forgetNamed(tx, id);
      return true;
    });
    if (isGone) drop(app, id);
  }
}

/** Snapshots a workspace keeps. */
export function countSnapshots(db: Db, workspaceId: string): Promise<number> {
  return countNamed(db, workspaceId);
}
