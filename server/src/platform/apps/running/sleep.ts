/**
 * Sleep: an app is held still, at no cost but its memory, and goes on within milliseconds. After a while in which
 * nobody wants it, its process is asked to end and its memory is freed as well; then waking it is a start.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { freeze, setHeld } from "#machines/placement/machine-of-owner.ts";
import { release as releaseMachine } from "#machines/placement/placement.ts";
import type { AppsContext } from "../apps-context.ts";
import { endProcess } from "../release/drain.ts";
import { nothingDeployed, sleepDuringDeployment } from "../errors.ts";
import type { Running } from "./app-instance.ts";
import { findAsleepSince, isBeingDeployed, lockEnvironment, move, setServed } from "../store.ts";

/** Whose it is, for the record of who did what. */
export interface Whose {
  actor: Actor;
  workspaceId: string;
  label: string;
}

/** What is under way when it is put to sleep gets this long; what is not over then goes on when it wakes. */
const quietWithinMs = 5_000;

/** It is asleep when this settles. */
export function sleep(apps: AppsContext, environmentId: string, whose?: Whose): Promise<void> {
  return apps.turn(environmentId, async () => {
    const running = apps.serving(environmentId);
    if (!running) throw nothingDeployed();
    if (running.state === "asleep") return;
    const { app } = apps;
    const machine = await app.db.transaction().execute(async (tx) => {
      if (!(await lockEnvironment(tx, environmentId))) throw nothingDeployed();
      if (await isBeingDeployed(tx, environmentId)) throw sleepDuringDeployment();
      if (!(await move(tx, running.id, "asleep"))) throw nothingDeployed();
      await setServed(tx, environmentId, { asleep_since: app.clock.now() });
      if (whose) await recordMove(tx, whose, "environment.slept", environmentId);
      return setHeld(tx, running.owner, true);
    });
    running.state = "asleep";
    await apps.routes.refresh(environmentId);
    await apps.say(running, "Asleep.");
    if (!machine) return;
    if (running.isUp) await apps.front.drained(machine.id, quietWithinMs);
    await freeze(app, machine);
  });
}

export function recordMove(
  tx: Parameters<typeof recordActivity>[0],
  { actor, workspaceId, label }: Whose,
  action: string,
  environmentId: string,
): Promise<void> {
  return recordActivity(tx, actor, action, { kind: "environment", id: environmentId, label }, workspaceId);
}

/** Those that nobody has wanted for a while give their memory back. */
export async function letGoOfRested(apps: AppsContext): Promise<void> {
  const held = [...apps.running.values()].filter(
    ({ state, machine }) => state === "asleep" && machine !== null,
  );
  for (const running of held) {
    const since = await findAsleepSince(apps.app.db, running.environmentId);
    const restedMs = apps.app.clock.now().getTime() - (since?.getTime() ?? Number.POSITIVE_INFINITY);
    if (restedMs < apps.app.config.appFrozenMinutes * 60_000) continue;
    await apps.turn(running.environmentId, async () => {
      if (running.state === "asleep" && running.machine !== null) await stop(apps, running);
    });
  }
}

/** Its process and its machine go; it stays asleep. */
export async function stop(apps: AppsContext, running: Running): Promise<void> {
  await endProcess(apps, running);
  const machine = await apps.app.db.transaction().execute((tx) => releaseMachine(tx, running.owner));
  if (machine) await apps.app.machines.destroy(machine);
  await running.gone();
  await apps.routes.refresh(running.environmentId);
}
