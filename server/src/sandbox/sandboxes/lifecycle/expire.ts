/**
 * Enforces deadlines by a query every second instead of a job per sandbox. A create then writes nothing to the queue, a
 * keep-alive is one update, and a restarted server catches up with its first query. Terminations happen at once; pauses
 * take seconds and run in a loop of their own, so that they delay no termination.
 */
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import type { MoveDeadlines } from "#machines/suspension/suspension.ts";
import { forgetEvents } from "#sandbox/events/feed.ts";
import { reclaimNamed } from "#sandbox/snapshots/snapshots.ts";
import { endStaleMoves } from "./moves.ts";
import { pause } from "./pause.ts";
import {
  deleteTerminatedBefore,
  findExpired,
  findExpiredSnapshots,
  findTier,
  moveDeadlines,
} from "../store.ts";
import { endSandbox } from "./terminate.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const lookEveryMs = 1_000;
const reclaimEveryMs = 60_000;
const forgetEveryMs = 3_600_000;
const keepTerminatedMs = 30 * 24 * 3_600_000;
/** Time for which a failed pause at the deadline is retried. After that, the sandbox is terminated. */
const retryPauseForMs = 60_000;
const retryPauseEveryMs = 5_000;
/** Maximum of concurrent pauses, because each takes a second of disk and processor. */
const pausesAtOnce = 2;

/** Terminates and pauses sandboxes at their deadline. Returns their number. */
export async function expireSandboxes(app: Needs): Promise<number> {
  return (await endExpired(app)) + (await pauseExpired(app));
}

async function endExpired(app: Needs): Promise<number> {
  const now = app.clock.now();
  const expired = await findExpired(app.db, now, "kill");
  for (const row of expired) {
    await endSandbox(app, { id: row.id, reason: "timeout", expiredBy: now, row });
  }
  return expired.length;
}

async function pauseExpired(app: Needs): Promise<number> {
  const now = app.clock.now();
  const expired = await findExpired(app.db, now, "pause");
  const places = new Semaphore(pausesAtOnce);
  await Promise.all(expired.map((row) => places.run(() => pauseOrEnd(app, row, now))));
  return expired.length;
}

/** Earliest retry for each sandbox whose pause failed. */
const notBefore = new Map<string, number>();

async function pauseOrEnd(
  app: Needs,
  row: { id: string; workspace_id: string; machine_id: string | null; expires_at: Date },
  expiredBy: Date,
): Promise<void> {
  if ((notBefore.get(row.id) ?? 0) > expiredBy.getTime()) return;
  try {
    const tier = await findTier(app.db, row.workspace_id);
    // At the deadline, the cap applies only to the free tier. A paid sandbox is always paused at its deadline.
    await pause(app, row, { reason: "deadline", tier, isCapped: tier === "free", expiredBy });
    notBefore.delete(row.id);
  } catch (error) {
    const isCap = error instanceof DomainError && error.code === "snapshot_cap_reached";
    const isOver = expiredBy.getTime() - row.expires_at.getTime() >= retryPauseForMs;
    if (isCap || isOver) {
      notBefore.delete(row.id);
      const detail = { not_paused: error instanceof DomainError ? error.detail : "It could not be paused." };
      await endSandbox(app, { id: row.id, reason: "timeout", expiredBy, row, detail });
      return;
    }
    notBefore.set(row.id, expiredBy.getTime() + retryPauseEveryMs);
    app.log.warn(
      { sandbox: row.id, err: error },
      "a sandbox could not be paused at its deadline; the next pass retries it",
    );
  }
}

/** Terminates sandboxes that were paused for longer than their tier keeps them. */
export async function reclaimSnapshots(app: Needs): Promise<number> {
  const now = app.clock.now();
  const expired = await findExpiredSnapshots(app.db, now);
  for (const { id } of expired) {
    await endSandbox(app, { id, reason: "snapshot_expired", snapshotExpiredBy: now });
  }
  return expired.length;
}

/** Moves deadlines by the time that a suspension froze the workspace. */
export const moveSandboxDeadlines: MoveDeadlines = (tx, { workspaceId, ms }) =>
  moveDeadlines(tx, workspaceId, ms);

/** Starts the periodic passes; `stop` ends them. */
export function startExpiry(app: Needs): { stop: () => void } {
  const every = (ms: number, what: string, work: () => Promise<unknown>) => {
    let isBusy = false;
    return setInterval(() => {
      if (isBusy) return;
      isBusy = true;
      work()
        .catch((error: unknown) => app.log.error({ err: error }, what))
        .finally(() => (isBusy = false));
    }, ms);
  };
  const timers = [
    every(lookEveryMs, "sandbox deadlines could not be looked at", () => endExpired(app)),
    every(lookEveryMs, "sandboxes could not be paused at their deadline", () => pauseExpired(app)),
    every(reclaimEveryMs, "old snapshots could not be reclaimed", () => reclaimSnapshots(app)),
    every(reclaimEveryMs, "kept snapshots could not be reclaimed", () => reclaimNamed(app)),
    every(reclaimEveryMs, "moves that came to nothing could not be ended", () => endStaleMoves(app)),
    every(forgetEveryMs, "old sandbox records could not be deleted", () =>
      deleteTerminatedBefore(app.db, new Date(app.clock.now().getTime() - keepTerminatedMs)),
    ),
    every(forgetEveryMs, "old events could not be deleted", () => forgetEvents(app)),
  ];
  return { stop: () => timers.forEach(clearInterval) };
}
