import type { Actor } from "#accounts/actor.ts";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { release } from "#machines/placement/placement.ts";
import { detachSnapshot, deleteSnapshotFiles } from "#machines/snapshots/snapshots.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { releaseVolume } from "#sandbox/volumes/attach.ts";
import { sandboxNotFound, whyTerminated } from "../errors.ts";
import { getSandbox, reachable } from "../sandboxes.ts";
import { findSandbox, type SandboxRow, terminateRow } from "../store.ts";
import type { TerminationReason } from "../tables.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

/** Terminates a sandbox for a caller. Works in every state; a terminated sandbox is returned unchanged. */
export async function terminateSandbox(app: Needs, actor: Actor, id: string): Promise<SandboxRow> {
  const row = await getSandbox(app, actor, id);
  await endSandbox(app, { id, reason: "requested", actor, row });
  const ended = await findSandbox(app.db, id, reachable(actor));
  if (!ended) throw sandboxNotFound();
  return ended;
}

export interface Ending {
  id: string;
  reason: TerminationReason;
  /** If set, terminates the sandbox only if its deadline is not later than this. */
  expiredBy?: Date;
  /** If set, terminates only a paused sandbox whose snapshot expires no later than this. */
  snapshotExpiredBy?: Date;
  /** CPU time of the removed machine; read from the machine if absent. */
  cpuSeconds?: number;
  actor?: Actor;
  /** Details of the reason, for the record. */
  detail?: Record<string, unknown>;
  row?: Pick<SandboxRow, "machine_id">;
}

/** Reasons for which `sandbox.expired` is the only event. */
const hasExpired: ReadonlySet<TerminationReason> = new Set(["timeout", "snapshot_expired"]);
const hasFailed: ReadonlySet<TerminationReason> = new Set(["out_of_memory", "host_lost", "start_failed"]);

/**
 * The only path that terminates a sandbox. The row and the desired state of the machine commit together. The machine is
 * removed afterwards, and the next reconcile retries a failure. False if another caller was first.
 */
export async function endSandbox(app: Needs, ending: Ending): Promise<boolean> {
  const machineId = ending.row?.machine_id;
  const cpuSeconds = ending.cpuSeconds ?? (machineId ? await app.machines.cpuSeconds(machineId) : 0);
  const released = await app.db.transaction().execute(async (tx) => {
    const { id, reason, expiredBy, snapshotExpiredBy } = ending;
    const at = app.clock.now();
    const row = await terminateRow(tx, id, {
      reason,
      at,
      cpuSeconds,
      ...(expiredBy ? { expiredBy } : {}),
      ...(snapshotExpiredBy ? { snapshotExpiredBy } : {}),
    });
    if (!row) return undefined;
    const target = { kind: "sandbox", id, label: row.template };
    const actor = ending.actor ?? systemActor("deadlines and repairs");
    await recordActivity(tx, actor, "sandbox.terminated", target, row.workspace_id, {
      reason,
      ...ending.detail,
    });
    const owner = { ownerKind: "sandbox", ownerId: id } as const;
    if (row.volume_id !== null) await releaseVolume(tx, id);
    const freed = { machine: await release(tx, owner), snapshot: await detachSnapshot(tx, owner) };
    await recordEvent(tx, {
      workspaceId: row.workspace_id,
      event: hasExpired.has(reason) ? "sandbox.expired" : "sandbox.terminated",
      sandboxId: id,
      at,
      outcome: hasFailed.has(reason) ? "failed" : "ok",
      summary: `Terminated: ${whyTerminated[reason]}.`,
      detail: {
        ...byWhom(actor),
        reason,
        from: freed.snapshot ? "paused" : "running",
        to: "terminated",
        ...ending.detail,
        ...(freed.snapshot ? { snapshot_id: freed.snapshot.id } : {}),
      },
      actor,
    });
    return freed;
  });
  if (released?.machine) app.machines.destroyLater(released.machine);
  if (released?.snapshot) deleteSnapshotFiles(app, released.snapshot.id);
  return released !== undefined;
}
