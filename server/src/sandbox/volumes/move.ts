/**
 * Moves a volume to another region. The row records the target, and a job performs the move. The job copies the files
 * to the target, syncs them to disk, reads them back and compares them. Then one transaction records the new region,
 * and the old files are deleted. The old files are valid before that transaction, the new files after it. A crash at
 * any moment leaves one complete volume, and the next start continues the move.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { addJob, type JobContext } from "#jobs/jobs.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { copyVolume, deleteVolumeFiles } from "#machines/volumes.ts";
import { recordEvent } from "../events/events.ts";
import { volumeThere } from "./errors.ts";
import type { Volume } from "./schema.ts";
import { changeVolume, endMoveRow, findVolume, type VolumeRow } from "./store.ts";
import { knownRegion, lockFree, render, target } from "./volumes.ts";

type Needs = Pick<App, "db" | "machines" | "config" | "clock">;

/** Payload: `{ volume, to }`. The task is for this host only, because it has the bytes. */
export function moveTask(app: Pick<App, "machines">): string {
  return `sandbox.volumes.move@${app.machines.host.id}`;
}

const attempts = 5;

/** Returns once the move is queued; `volume.moved` reports its end. */
export async function move(app: Needs, actor: Actor, reference: string, to: string): Promise<Volume> {
  const region = knownRegion(app, to);
  const row = await app.db.transaction().execute(async (tx) => {
    const free = await lockFree(tx, actor, reference);
    if (free.region === region) throw volumeThere(free.name, region);
    const moving = await changeVolume(tx, free.id, { moving_to: region });
    await recordActivity(tx, actor, "sandbox_volume.move_begun", target(free), free.workspace_id, {
      from: free.region,
      to: region,
    });
    await queueMove(app, tx, moving);
    return moving;
  });
  return render(app, row);
}

/** Moves run one at a time, because the disk limits their speed. */
export async function queueMove(app: Pick<App, "machines">, db: Db, row: VolumeRow): Promise<void> {
  await addJob(
    db,
    moveTask(app),
    { volume: row.id, to: row.moving_to },
    { key: `volume:${row.id}`, queue: "sandbox.volumes", maxAttempts: attempts },
  );
}

/**
 * Runs the job of a move. A volume that cannot be moved, or not after several attempts, stays in its region, and the
 * event gives the reason.
 */
export async function runMove(
  app: Needs,
  { volume, to }: { volume: string; to: string },
  context: JobContext,
): Promise<void> {
  const row = await findVolume(app.db, volume);
  if (row?.moving_to === to) {
    try {
      await carry(app, row, to, context.signal);
    } catch (error) {
      const isOver = error instanceof DomainError || context.attempt >= context.maxAttempts;
      if (context.signal.aborted || !isOver) throw error;
      await end(app, row, { to, region: row.region, failure: error });
    }
  }
  const now = await findVolume(app.db, volume);
  if (now) await deleteVolumeFiles(app, volume, { except: now.region });
}

async function carry(app: Needs, row: VolumeRow, to: string, signal: AbortSignal): Promise<void> {
  // A volume that was never used has no bytes.
  const copied = row.is_made ? await copyVolume(app, row, to, signal) : { bytes: 0, sha256: null };
  await passKillPoint("volume.copied");
  await end(app, row, { to, region: to, copied });
  await passKillPoint("volume.moved");
}

function end(
  app: Needs,
  { id, region: from }: VolumeRow,
  outcome: {
    to: string;
    /** Current region. */
    region: string;
    copied?: { bytes: number; sha256: string | null };
    failure?: unknown;
  },
): Promise<void> {
  const { to, region, copied, failure } = outcome;
  return app.db.transaction().execute(async (tx) => {
    const row = await endMoveRow(tx, id, { to, region });
    if (!row) return;
    const why = failure instanceof DomainError ? failure.detail : "It could not be copied.";
    const actor = systemActor("moves of volumes");
    await recordActivity(tx, actor, "sandbox_volume.moved", target(row), row.workspace_id, {
      from,
      to,
      region,
    });
    await recordEvent(tx, {
      workspaceId: row.workspace_id,
      event: "volume.moved",
      sandboxId: null,
      subject: { volume_id: id, from, to },
      at: app.clock.now(),
      outcome: copied ? "ok" : "failed",
      summary: copied
        ? `Volume ${row.name} moved from ${from} to ${to}.`
        : `Volume ${row.name} stays in ${from}.`,
      detail: { volume_id: id, name: row.name, from, to, region, ...(copied ?? { reason: why }) },
      actor,
    });
  });
}
