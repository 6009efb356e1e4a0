/** Continues runs whose waits for a sign-in are over: the person signed in, or the deadline has passed. */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { continueRun } from "#agent/runs/engine/waiting-run.ts";
import { lockRun } from "#agent/runs/store.ts";
import { findOverRuns, findOverWaitsOf } from "./store.ts";
import { closeWaits } from "./waits.ts";

const runsAtOnce = 100;

/**
 * Ends the waits that are over, and returns the ids of the changed runs. An error with one run does not affect the
 * other runs.
 */
export async function resolveWaits({ db, log }: Pick<App, "db" | "log">, now: Date): Promise<string[]> {
  const runs: string[] = [];
  for (const run of await findOverRuns(db, now, runsAtOnce)) {
    try {
      if (await resolveWaitsOf(db, run, now)) runs.push(run);
    } catch (error) {
      log.error({ error, run }, "could not continue a run after its wait for a sign-in");
    }
  }
  return runs;
}

/** Ends the waits of one run that are over. Returns false if there is none. */
export async function resolveWaitsOf(db: Db, runId: string, now: Date): Promise<boolean> {
  if ((await findOverWaitsOf(db, runId, now)).length === 0) return false;
  const isResolved = await transaction(db, async (tx) => {
    if (!(await lockRun(tx, runId))) return false;
    const over = await findOverWaitsOf(tx, runId, now);
    if (over.length === 0) return false;
    await continueRun(tx, runId, await closeWaits(tx, over, now));
    return true;
  });
  if (isResolved) await passKillPoint("agent.sign_in.resolved");
  return isResolved;
}
