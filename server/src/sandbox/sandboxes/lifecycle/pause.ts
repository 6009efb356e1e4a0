/**
 * Pauses a sandbox: writes memory, processes and files to disk, records "paused", then frees the machine. Concurrent
 * calls wait meanwhile. A failure before the row records "paused" leaves the sandbox running; later steps only clean
 * up.
 */
import type { Actor } from "#accounts/actor.ts";
import type { SandboxTier } from "#accounts/roles.ts";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import { tierLimits } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import {
  deleteSnapshotFiles,
  releaseMachine,
  commitSnapshot,
  resumeOriginal,
  type SnapshotRow,
  captureMachine,
} from "#machines/snapshots/snapshots.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { sandboxNotFound, snapshotCapReached } from "../errors.ts";
import { underWay, waitForMove } from "./moves.ts";
import { getSandbox, refuseUnlessRunning } from "../sandboxes.ts";
import { beginMove, endMove, findTier, lockAndCountSnapshots, pauseRow } from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const dayMs = 24 * 3_600_000;

/** Pauses for a caller, within the tier's cap. */
export async function pauseSandbox(app: Needs, actor: Actor, id: string): Promise<SnapshotRow> {
  await getSandbox(app, actor, id);
  for (;;) {
    const row = await waitForMove(app, id);
    if (!row) throw sandboxNotFound();
    refuseUnlessRunning(row);
    const tier = await findTier(app.db, row.workspace_id);
    const snapshot = await pause(app, row, { reason: "explicit", tier, isCapped: true, actor });
    // Without a snapshot, another caller was first, so the loop reads the row again.
    if (snapshot) return snapshot;
  }
}

/**
 * Pauses an idle sandbox for the owner of its record. False if it does not run; paid tiers are never refused.
 */
export async function park(app: Needs, id: string, actor: Actor): Promise<boolean> {
  const row = await waitForMove(app, id);
  if (row?.status !== "running") return false;
  const tier = await findTier(app.db, row.workspace_id);
  const isCapped = tier === "free";
  return (await pause(app, row, { reason: "explicit", tier, isCapped, actor })) !== undefined;
}

export interface Pausing {
  reason: SnapshotRow["reason"];
  tier: SandboxTier;
  /** True if the pause fails with `snapshot_cap_reached` at the tier's cap. */
  isCapped: boolean;
  /** If set, pauses the sandbox only if its deadline is not later than this. */
  expiredBy?: Date;
  actor?: Actor;
}

/** Pauses a sandbox. Undefined if the sandbox does not run, or another move is in progress. */
export function pause(
  app: Needs,
  row: { id: string; workspace_id: string },
  how: Pausing,
): Promise<SnapshotRow | undefined> {
  return underWay(row.id, () => carryOut(app, row, how));
}

async function carryOut(
  app: Needs,
  { id, workspace_id }: { id: string; workspace_id: string },
  how: Pausing,
): Promise<SnapshotRow | undefined> {
  const hasBegun = await app.db.transaction().execute(async (tx) => {
    const { snapshots: cap } = tierLimits[how.tier];
    if (how.isCapped && (await lockAndCountSnapshots(tx, workspace_id)) >= cap) {
      throw snapshotCapReached(cap, how.tier);
    }
    return beginMove(tx, id, { transition: "pausing", from: "running", expiredBy: how.expiredBy });
  });
  if (!hasBegun) return undefined;
  await passKillPoint("pause.begun");
  const owner = { ownerKind: "sandbox", ownerId: id } as const;
  try {
    const taken = await captureMachine(app, owner);
    await passKillPoint("pause.taken");
    const snapshot = await commit(app, taken, how).catch(async (error: unknown) => {
      await resumeOriginal(app, taken);
      throw error;
    });
    await passKillPoint("pause.committed");
    if (snapshot) releaseMachine(app, taken);
    // The sandbox and its machine were deleted meanwhile.
    else deleteSnapshotFiles(app, taken.id);
    return snapshot;
  } catch (error) {
    if (await endMove(app.db, id, "pausing")) throw error;
    // The sandbox ended meanwhile, and therefore the pause failed.
    return undefined;
  }
}

function commit(app: Needs, taken: Awaited<ReturnType<typeof captureMachine>>, how: Pausing) {
  return app.db.transaction().execute(async (tx) => {
    const at = app.clock.now();
    const days = tierLimits[how.tier].pausedRetentionDays;
    const id = taken.machine.owner_id ?? "";
    const row = await pauseRow(tx, id, { at, cpuSeconds: taken.cpuSeconds });
    if (!row) return undefined;
    const snapshot = await commitSnapshot(tx, taken, {
      reason: how.reason,
      storedAt: at,
      expiresAt: days === null ? null : new Date(at.getTime() + days * dayMs),
    });
    if (!snapshot) throw new Error("a sandbox that is being paused keeps its machine");
    const target = { kind: "sandbox", id, label: row.template };
    const actor = how.actor ?? systemActor("deadlines and repairs");
    await recordActivity(tx, actor, "sandbox.paused", target, row.workspace_id, {
      reason: how.reason,
      snapshot_id: snapshot.id,
    });
    const isDeadline = how.reason === "deadline";
    await recordEvent(tx, {
      workspaceId: row.workspace_id,
      event: isDeadline ? "sandbox.expired" : "sandbox.paused",
      sandboxId: id,
      at,
      outcome: "ok",
      summary: isDeadline ? "Paused: it reached its timeout." : "Paused.",
      detail: { ...byWhom(actor), from: "running", to: "paused", snapshot_id: snapshot.id },
      actor,
    });
    return snapshot;
  });
}
