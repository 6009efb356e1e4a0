/**
 * The machine of a session: a sandbox that the first tool call creates. The sandbox is labeled with its session,
 * counts against the plan, and ends with the session. This folder owns the mapping of sessions to sandboxes. The
 * folder promises:
 * - A session has at most one machine, which is deleted soon after its session.
 * - An idle machine is parked on disk, and resumes with its files at the next call.
 * - No machine is parked or expires during a run.
 * - A lost machine fails exactly one run. The next run gets a new machine.
 *
 * Whether the sandbox runs is stored only in the sandbox's own row.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Actor } from "#accounts/actor.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { workerActor } from "#accounts/worker-actor.ts";
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import { SingleFlight } from "#lib/concurrency/single-flight.ts";
import { isForGood, restoreFailed } from "#machines/errors.ts";
import { sandboxNotFound, sandboxTerminated, whyTerminated } from "#sandbox/sandboxes/errors.ts";
import { keepAlive } from "#sandbox/sandboxes/lifecycle/keep-alive.ts";
import { statesOf } from "#sandbox/sandboxes/overview.ts";
import { resumeSandbox } from "#sandbox/sandboxes/lifecycle/resume.ts";
import { endSandbox } from "#sandbox/sandboxes/lifecycle/terminate.ts";
import { findWorker } from "../agents/worker.ts";
import { RunFailure } from "../runs/engine/run-failure.ts";
import type { ToolUser } from "../tools/tool.ts";
import { sessionParking } from "./errors.ts";
import { createMachine } from "./create-machine.ts";
import { lifetimeSeconds, vmOf } from "./config.ts";
import { findMachine, type MachineRow, markLost, useMachine } from "./store.ts";

/** Sandbox in which a tool call runs, and the actor of the call. */
export interface MachineAccess {
  actor: Actor;
  sandboxId: string;
}

/** Longest wait for a machine that is being parked. The wait exceeds the duration of any pause. */
const parkingMaxMs = 200_000;
const lookEveryMs = 100;
/**
 * Maximum number of attempts to resume a machine, because a host may lack capacity for a moment. Then the model gets
 * the error.
 */
const resumeTries = 3;
const resumePauseMs = 1_000;

/** Concurrent calls that share one creation. The key is the server, because a test process runs several servers. */
const flights = new WeakMap<App["machines"], SingleFlight<string>>();

/** Returns the agent's actor for its machines. Returns undefined if the agent's account has no owner. */
export async function findMachineActor(app: Pick<App, "db">, agentId: string): Promise<Actor | undefined> {
  const worker = await findWorker(app.db, agentId);
  return worker && (await workerActor(app.db, worker, null));
}

/** Returns the session's machine after it is running. Concurrent calls share one creation. */
export async function ensureMachine(app: App, user: ToolUser): Promise<MachineAccess> {
  const actor = await findMachineActor(app, user.agentId);
  if (!actor) throw new RunFailure("internal", "The agent's account has no owner.");
  const flight = flights.get(app.machines) ?? new SingleFlight<string>();
  flights.set(app.machines, flight);
  return { actor, sandboxId: await flight.run(user.sessionId, () => acquireMachine(app, user, actor)) };
}

/**
 * Returns the machine in which a command was started, after it is running. Returns undefined if the session has another
 * machine since then.
 */
export async function findStartedMachine(
  app: App,
  user: ToolUser,
  sandboxId: string,
): Promise<MachineAccess | undefined> {
  const state = (await statesOf(app.db, [sandboxId])).get(sandboxId);
  if (!state || state.status === "terminated") return undefined;
  const place = await ensureMachine(app, user);
  return place.sandboxId === sandboxId ? place : undefined;
}

async function acquireMachine(app: App, user: ToolUser, actor: Actor): Promise<string> {
  const { park_after_seconds: parkAfterSeconds } = vmOf(user);
  for (const until = performance.now() + parkingMaxMs; ; await sleep(lookEveryMs)) {
    const row = await useMachine(app.db, user.sessionId, { at: app.clock.now(), parkAfterSeconds });
    const made = row ? await resumeMachine(app, user, actor, row) : await createOrReplace(app, user, actor);
    if (made !== undefined) return made;
    if (performance.now() > until) throw sessionParking();
  }
}

/** Creates the first machine, or replaces a lost machine. Returns undefined if the caller must retry. */
async function createOrReplace(app: App, user: ToolUser, actor: Actor): Promise<string | undefined> {
  const row = await findMachine(app.db, user.sessionId);
  if (!row) return createMachine(app, user, actor);
  if (row.state === "ending") throw new RunFailure("session_ended", "The session was ended.");
  if (row.state !== "lost") return undefined;
  if (row.lost_in === user.runId) throw machineLost("it does not exist any more");
  return createMachine(app, user, actor, row);
}

/** Resumes the machine. Returns undefined if a concurrent call replaced the machine. */
async function resumeMachine(
  app: App,
  user: ToolUser,
  actor: Actor,
  row: MachineRow,
): Promise<string | undefined> {
  const { sandbox_id: id } = row;
  const state = (await statesOf(app.db, [id])).get(id);
  // The machine never ran, so it contained nothing. The call that created the machine got the error, or died with its
  // server.
  if (state?.termination_reason === "start_failed") return createMachine(app, user, actor, row);
  if (!state || state.status === "terminated") throw await giveUpMachine(app, user, row);
  try {
    await resume(app, actor, id);
    await keepAlive(app, actor, id, lifetimeSeconds(user.config, actor));
  } catch (error) {
    throw isDeleted(error) || isUnrestorable(error) ? await giveUpMachine(app, user, row) : error;
  }
  return id;
}

async function resume(app: App, actor: Actor, id: string): Promise<void> {
  for (let tries = 1; ; tries += 1) {
    try {
      await resumeSandbox(app, actor, id);
      return;
    } catch (error) {
      if (!isOneOf(error, [restoreFailed]) || tries === resumeTries) throw error;
      await sleep(resumePauseMs);
    }
  }
}

/**
 * Returns the failure of a run whose machine is lost. If the sandbox exists but cannot be restored, terminates the
 * sandbox.
 */
async function giveUpMachine(app: App, user: ToolUser, row: MachineRow): Promise<RunFailure> {
  const state = (await statesOf(app.db, [row.sandbox_id])).get(row.sandbox_id);
  await markLost(app.db, row, user.runId);
  const actor = systemActor("a session's lost machine");
  if (state && state.status !== "terminated") {
    await endSandbox(app, { id: row.sandbox_id, reason: "requested", actor });
    return machineLost("it could not be restored");
  }
  return machineLost(whyTerminated[state?.termination_reason ?? "requested"]);
}

const machineLost = (why: string) =>
  new RunFailure(
    "vm_lost",
    `The session's machine is lost: ${why}. The conversation stays; the next run gets a new machine.`,
  );

/** Returns the run's failure if the machine terminated during a call. Returns undefined if the machine still exists. */
export async function findLost(
  app: App,
  user: ToolUser,
  { sandboxId }: MachineAccess,
): Promise<RunFailure | undefined> {
  const row = await findMachine(app.db, user.sessionId);
  if (row?.sandbox_id !== sandboxId) return machineLost("it does not exist any more");
  const state = (await statesOf(app.db, [sandboxId])).get(sandboxId);
  return !state || state.status === "terminated" ? giveUpMachine(app, user, row) : undefined;
}

const isOneOf = (error: unknown, rows: readonly { code: string }[]): boolean =>
  error instanceof DomainError && rows.some(({ code }) => code === error.code);

export const isDeleted = (error: unknown): boolean => isOneOf(error, [sandboxTerminated, sandboxNotFound]);

/** Returns true for an error that no retry can cure. Other errors may be transient, so the machine is kept. */
const isUnrestorable = (error: unknown): boolean =>
  isOneOf(error, [restoreFailed]) && isForGood(error as DomainError);
