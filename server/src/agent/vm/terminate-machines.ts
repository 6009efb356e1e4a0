/**
 * The end of sessions' machines. The mark and the job that carries it out are the caller's transaction's; the job is
 * tried again until the sandbox is gone, and a look now and then finds what no job stands for.
 */
import type { RawBuilder } from "kysely";
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import {
  deleteMachine,
  findLeft,
  findMachine,
  markedEnding,
  markEnding,
  markEndingOfAgent,
} from "./store.ts";

export const endMachineTask = "agent.machines.end";

const atOnce = 100;

/** A part of a statement whose rows `session` are of sessions that end by it: the rows `machines`, each for `endSoon`. */
export function machinesEnding(): RawBuilder<unknown> {
  return markedEnding();
}

/** The jobs that end these sessions' machines, which are marked. */
export async function endSoon(tx: Db, sessionIds: readonly string[]): Promise<void> {
  for (const session of sessionIds) await addJob(tx, endMachineTask, { session });
}

/**
 * Ends the machines of these sessions; answers how many there were. The caller holds the sessions and ends them in this
 * transaction: so nobody makes them another one.
 */
export async function endMachines(tx: Db, sessionIds: readonly string[]): Promise<number> {
  if (sessionIds.length === 0) return 0;
  const ending = await markEnding(tx, sessionIds);
  await endSoon(tx, ending);
  return ending.length;
}

/** Ends the machines of all sessions of an agent. The caller holds the workspace's counts and deletes the agent. */
export async function endMachinesOfAgent(tx: Db, agentId: string): Promise<void> {
  await endSoon(tx, await markEndingOfAgent(tx, agentId));
}

/** The sandbox is gone when this returns, and then the row; safe to repeat. */
export async function destroyMachine(
  app: Pick<App, "db" | "machines" | "clock" | "log">,
  sessionId: string,
): Promise<void> {
  const row = await findMachine(app.db, sessionId);
  if (!row) return;
  const actor = systemActor("the end of a session");
  await endSandbox(app, { id: row.sandbox_id, reason: "requested", actor });
  await deleteMachine(app.db, row);
}

/** Machines whose session is gone. */
export async function destroyLeft(app: Pick<App, "db" | "machines" | "clock" | "log">): Promise<void> {
  for (const session of await findLeft(app.db, atOnce)) {
    await destroyMachine(app, session).catch((error: unknown) =>
      app.log.warn({ error, session }, "a machine whose session is gone is still there"),
    );
  }
}
