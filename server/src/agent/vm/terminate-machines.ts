/**
 * Terminates sessions' machines. The mark and the job commit with the caller's transaction. The job retries until the
 * sandbox is deleted. A sweep finds machines without a job.
 */
import type { RawBuilder } from "kysely";
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import {
  deleteMachine,
  findOrphans,
  findMachine,
  markEndingRows,
  markEnding,
  markEndingOfAgent,
} from "./store.ts";

export const terminateMachineTask = "agent.machines.end";

const atOnce = 100;

/**
 * Returns the CTE `machines`, for a statement that ends the sessions in the rows `session`. `queueTermination` takes
 * the resulting rows.
 */
export function machinesEnding(): RawBuilder<unknown> {
  return markEndingRows();
}

/** Adds the jobs that terminate the marked machines of these sessions. */
export async function queueTermination(tx: Db, sessionIds: readonly string[]): Promise<void> {
  for (const session of sessionIds) await addJob(tx, terminateMachineTask, { session });
}

/**
 * Terminates the machines of these sessions and returns their number. The caller locks the sessions and ends them in
 * the same transaction, so no call creates another machine.
 */
export async function terminateMachines(tx: Db, sessionIds: readonly string[]): Promise<number> {
  if (sessionIds.length === 0) return 0;
  const ending = await markEnding(tx, sessionIds);
  await queueTermination(tx, ending);
  return ending.length;
}

/**
 * Terminates the machines of all sessions of an agent. The caller holds the lock on the workspace's counts and deletes
 * the agent.
 */
export async function terminateMachinesOfAgent(tx: Db, agentId: string): Promise<void> {
  await queueTermination(tx, await markEndingOfAgent(tx, agentId));
}

/** Deletes the sandbox and then the machine's row. Callers may repeat this safely. */
export async function terminateMachine(
  app: Pick<App, "db" | "machines" | "clock" | "log">,
  sessionId: string,
): Promise<void> {
  const row = await findMachine(app.db, sessionId);
  if (!row) return;
  const actor = systemActor("the end of a session");
  await endSandbox(app, { id: row.sandbox_id, reason: "requested", actor });
  await deleteMachine(app.db, row);
}

/** Deletes machines whose session ended or was deleted. */
export async function terminateOrphans(app: Pick<App, "db" | "machines" | "clock" | "log">): Promise<void> {
  for (const session of await findOrphans(app.db, atOnce)) {
    await terminateMachine(app, session).catch((error: unknown) =>
      app.log.warn({ error, session }, "could not delete the machine of an ended session; will retry"),
    );
  }
}
