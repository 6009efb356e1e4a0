/**
 * Puts an app to sleep: freezes its machine. The app then costs memory only, and wakes within milliseconds. After a
 * while without requests the process is stopped, which frees the memory. A wake is then a start.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { freeze, setFrozen } from "#machines/placement/machine-of-owner.ts";
import { release as releaseMachine } from "#machines/placement/placement.ts";
import type { AppsContext } from "../apps-context.ts";
import { endProcess } from "../release/drain.ts";
import { nothingDeployed, sleepDuringDeployment } from "../errors.ts";
import type { Running } from "./app-instance.ts";
import { findAsleepSince, isBeingDeployed, lockEnvironment, move, setServed } from "../store.ts";

/** Actor and workspace for the activity log. */
export interface ActivityContext {
  actor: Actor;
  workspaceId: string;
  label: string;
}

/** Longest wait for requests in flight before the freeze. Unfinished requests continue after the wake. */
const quietWithinMs = 5_000;

/** Puts the environment's app to sleep. Resolves when the app is frozen. */
export function sleep(apps: AppsContext, environmentId: string, context?: ActivityContext): Promise<void> {
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
      if (context) await recordMove(tx, context, "environment.slept", environmentId);
      return setFrozen(tx, running.owner, true);
    });
    running.state = "asleep";
    await apps.routes.refresh(environmentId);
    await apps.writeLog(running, "Asleep.");
    if (!machine) return;
    if (running.isUp) await apps.front.drained(machine.id, quietWithinMs);
    await freeze(app, machine);
  });
}

export function recordMove(
  tx: Parameters<typeof recordActivity>[0],
  { actor, workspaceId, label }: ActivityContext,
  action: string,
  environmentId: string,
): Promise<void> {
  return recordActivity(tx, actor, action, { kind: "environment", id: environmentId, label }, workspaceId);
}

/** Stops apps that have been frozen for a while, to free their memory. */
export async function stopRestedApps(apps: AppsContext): Promise<void> {
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

/** Stops process and machine. The app's state stays asleep. */
export async function stop(apps: AppsContext, running: Running): Promise<void> {
  await endProcess(apps, running);
  const machine = await apps.app.db.transaction().execute((tx) => releaseMachine(tx, running.owner));
  if (machine) await apps.app.machines.destroy(machine);
  await running.machineRemoved();
  await apps.routes.refresh(running.environmentId);
}
