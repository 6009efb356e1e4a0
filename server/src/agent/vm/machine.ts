/**
 * The machine of a session: a sandbox that is made when a tool first needs it, bears whose it is, counts like any other,
 * and ends with the session. This folder owns which sandbox that is. It promises that a session has one at most, and
 * none is there whose session is gone for long; that one which nobody uses is on disk, and comes back with what was in it
 * when a tool needs it again; that none is parked or runs out under a run; and that a machine which is lost is said to
 * be lost: to one run, which fails, and not to the next, which gets a new one. Whether the sandbox runs is in the
 * sandbox's own row alone.
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
import { makeMachine } from "./create-machine.ts";
import { lifetimeSeconds, vmOf } from "./config.ts";
import { findMachine, type MachineRow, markLost, useMachine } from "./store.ts";

/** Where a tool does its work, and as whom. */
export interface Place {
  actor: Actor;
  sandboxId: string;
}

/** Longer than a pause takes; whoever waits for less has gone by then. */
const parkingMaxMs = 200_000;
const lookEveryMs = 100;
/** A host that is short of something may have it a moment later; where it is short of it for longer, the model is told. */
const resumeTries = 3;
const resumePauseMs = 1_000;

/** One for each server, of which a process of tests has many. */
const flights = new WeakMap<App["machines"], SingleFlight<string>>();

/** Acts in machines for the agent. Undefined if its account has no owner. */
export async function findMachineActor(app: Pick<App, "db">, agentId: string): Promise<Actor | undefined> {
  const worker = await findWorker(app.db, agentId);
  return worker && (await workerActor(app.db, worker, null));
}

/** The session's machine, running. Calls of one step that need it at once get the same one. */
export async function ready(app: App, user: ToolUser): Promise<Place> {
  const actor = await findMachineActor(app, user.agentId);
  if (!actor) throw new RunFailure("internal", "The agent's account has nobody who owns it.");
  const flight = flights.get(app.machines) ?? new SingleFlight<string>();
  flights.set(app.machines, flight);
  return { actor, sandboxId: await flight.run(user.sessionId, () => bring(app, user, actor)) };
}

/** The machine that a command was started in, running; undefined if the session has it no longer. */
export async function findAgain(app: App, user: ToolUser, sandboxId: string): Promise<Place | undefined> {
  const state = (await statesOf(app.db, [sandboxId])).get(sandboxId);
  if (!state || state.status === "terminated") return undefined;
  const place = await ready(app, user);
  return place.sandboxId === sandboxId ? place : undefined;
}

async function bring(app: App, user: ToolUser, actor: Actor): Promise<string> {
  const { park_after_seconds: parkAfterSeconds } = vmOf(user);
  for (const until = performance.now() + parkingMaxMs; ; await sleep(lookEveryMs)) {
    const row = await useMachine(app.db, user.sessionId, { at: app.clock.now(), parkAfterSeconds });
    const made = row ? await wake(app, user, actor, row) : await replace(app, user, actor);
    if (made !== undefined) return made;
    if (performance.now() > until) throw sessionParking();
  }
}

/** Where none can be used: the first, or one in place of a lost one. Undefined where that is for a later look. */
async function replace(app: App, user: ToolUser, actor: Actor): Promise<string | undefined> {
  const row = await findMachine(app.db, user.sessionId);
  if (!row) return makeMachine(app, user, actor);
  if (row.state === "ending") throw new RunFailure("session_ended", "The session was ended.");
  if (row.state !== "lost") return undefined;
  if (row.lost_in === user.runId) throw lost("it is not there any more");
  return makeMachine(app, user, actor, row);
}

/** Undefined where somebody else made another meanwhile. */
async function wake(app: App, user: ToolUser, actor: Actor, row: MachineRow): Promise<string | undefined> {
  const { sandbox_id: id } = row;
  const state = (await statesOf(app.db, [id])).get(id);
  // Nothing was ever in it: whoever waited for it was told, or died with the server.
  if (state?.termination_reason === "start_failed") return makeMachine(app, user, actor, row);
  if (!state || state.status === "terminated") throw await lose(app, user, row);
  try {
    await resume(app, actor, id);
    await keepAlive(app, actor, id, lifetimeSeconds(user.config, actor));
  } catch (error) {
    throw isGone(error) || isUnrestorable(error) ? await lose(app, user, row) : error;
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

/** What the run fails with. A sandbox that is still there, but can't be started again, is given up. */
async function lose(app: App, user: ToolUser, row: MachineRow): Promise<RunFailure> {
  const state = (await statesOf(app.db, [row.sandbox_id])).get(row.sandbox_id);
  await markLost(app.db, row, user.runId);
  const actor = systemActor("a session's lost machine");
  if (state && state.status !== "terminated") {
    await endSandbox(app, { id: row.sandbox_id, reason: "requested", actor });
    return lost("it could not be started again");
  }
  return lost(whyTerminated[state?.termination_reason ?? "requested"]);
}

const lost = (why: string) =>
  new RunFailure(
    "vm_lost",
    `The session's machine is lost: ${why}. The conversation stays; the next run gets a new machine.`,
  );

/** A call met the end of its machine: what the run fails with; undefined where the machine is there after all. */
export async function findLost(
  app: App,
  user: ToolUser,
  { sandboxId }: Place,
): Promise<RunFailure | undefined> {
  const row = await findMachine(app.db, user.sessionId);
  if (row?.sandbox_id !== sandboxId) return lost("it is not there any more");
  const state = (await statesOf(app.db, [sandboxId])).get(sandboxId);
  return !state || state.status === "terminated" ? lose(app, user, row) : undefined;
}

const isOneOf = (error: unknown, rows: readonly { code: string }[]): boolean =>
  error instanceof DomainError && rows.some(({ code }) => code === error.code);

export const isGone = (error: unknown): boolean => isOneOf(error, [sandboxTerminated, sandboxNotFound]);

/** Whatever else kept it from being started may pass, and what was in the machine is kept for that long. */
const isUnrestorable = (error: unknown): boolean =>
  isOneOf(error, [restoreFailed]) && isForGood(error as DomainError);
