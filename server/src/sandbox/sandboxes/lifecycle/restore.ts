/**
 * Resumes a sandbox: restores the machine from its snapshot, then records "running" and deletes the snapshot.
 * Concurrent callers share one resume. A failure leaves the sandbox paused.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import { restoreFailed } from "#machines/errors.ts";
import { release } from "#machines/placement/placement.ts";
import {
  restoreMachine,
  consumeSnapshot,
  deleteSnapshotFiles,
  findSnapshot,
  placeRestored,
} from "#machines/snapshots/snapshots.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { byWhom, recordEvent } from "#sandbox/events/events.ts";
import { sandboxNotFound, sandboxPaused, sandboxTerminated } from "../errors.ts";
import { underWay, waitForMove } from "./moves.ts";
import { beginMove, endMove, isSuspended, resumeRow } from "../store.ts";

type Needs = Pick<App, "db" | "machines" | "secrets" | "clock" | "log">;

/** Resumes in flight by server, because a test process has several servers. */
const flights = new WeakMap<App["machines"], SingleFlight<void>>();

function flightsOf({ machines }: Needs): SingleFlight<void> {
  const known = flights.get(machines) ?? new SingleFlight<void>();
  flights.set(machines, known);
  return known;
}

/** Resumes a paused sandbox, which runs on return. `actor` requested the resume; null if a call woke the sandbox. */
export async function wake(app: Needs, id: string, actor: Actor | null): Promise<void> {
  for (;;) {
    const row = await waitForMove(app, id);
    if (!row) throw sandboxNotFound();
    if (row.status === "terminated") throw sandboxTerminated(row.termination_reason);
    if (row.status === "running") return;
    // Reads are allowed while the workspace is suspended; with `auto_resume` they would start the machine.
    if (await isSuspended(app.db, row.workspace_id)) throw sandboxPaused();
    await flightsOf(app).run(id, () => underWay(id, () => resume(app, id, actor)));
  }
}

async function resume(app: Needs, id: string, actor: Actor | null): Promise<void> {
  const owner = { ownerKind: "sandbox", ownerId: id } as const;
  const place = await withReclaim(app, () =>
    app.db.transaction().execute(async (tx) => {
      if (!(await beginMove(tx, id, { transition: "resuming", from: "paused" }))) return undefined;
      const snapshot = await findSnapshot(tx, owner);
      if (!snapshot) throw new Error("a paused sandbox has a snapshot");
      return placeRestored(app, tx, snapshot);
    }),
  );
  // Another caller was first, so the caller of this function reads the row again.
  if (!place) return;
  const { row: machine } = place;
  await passKillPoint("resume.begun");
  try {
    await restoreMachine(app, place);
    await passKillPoint("resume.restored");
    const isRunning = await app.db.transaction().execute(async (tx) => {
      const at = app.clock.now();
      const row = await resumeRow(tx, id, at);
      if (!row) return false;
      if (!(await consumeSnapshot(tx, machine))) throw restoreFailed(new Error("the restored machine ended"));
      const target = { kind: "sandbox", id, label: row.template };
      const by = actor ?? systemActor("a call to a paused sandbox");
      await recordActivity(tx, by, "sandbox.resumed", target, row.workspace_id, {
        snapshot_id: machine.snapshot_id,
        automatic: actor === null,
      });
      await recordEvent(tx, {
        workspaceId: row.workspace_id,
        event: "sandbox.resumed",
        sandboxId: id,
        at,
        outcome: "ok",
        summary: actor === null ? "Resumed by a call to it." : "Resumed.",
        detail: {
          ...byWhom(by),
          from: "paused",
          to: "running",
          snapshot_id: machine.snapshot_id,
          automatic: actor === null,
        },
        actor: by,
      });
      return true;
    });
    await passKillPoint("resume.committed");
    // A sandbox that does not run was deleted meanwhile, with its machine and its snapshot.
    if (!isRunning) return;
    app.machines.sampler.watch(machine.id);
    deleteSnapshotFiles(app, machine.snapshot_id ?? "");
  } catch (error) {
    const isPaused = await app.db.transaction().execute(async (tx) => {
      if (!(await endMove(tx, id, "resuming"))) return false;
      await release(tx, owner);
      return true;
    });
    app.machines.destroyLater(machine);
    if (isPaused) throw error;
  }
}
