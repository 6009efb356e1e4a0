/**
 * Ends an instance. Waits for its requests in flight, sends SIGTERM to its process group, and destroys its machine
 * after ten seconds. The state is in the database, so the next server completes the work.
 */
import { constants } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { passKillPoint } from "#lib/kill-points.ts";
import { findMachineOf, thaw } from "#machines/placement/machine-of-owner.ts";
import { release as releaseMachine } from "#machines/placement/placement.ts";
import type { AppsContext } from "../apps-context.ts";
import type { Running } from "../running/app-instance.ts";
import { deleteInstance } from "../store.ts";

const endsWithinMs = 10_000;
const retryMs = 5_000;

/**
 * Ends the instance in the background, until it is removed. With `isGraceful`, requests of this server that are in
 * flight end first.
 */
export function drainLater(
  apps: AppsContext,
  running: Running,
  { isGraceful }: { isGraceful: boolean },
): void {
  apps.inBackground("an app that no longer serves could not be removed yet", async () => {
    for (;;) {
      try {
        return await drain(apps, running, isGraceful);
      } catch (error) {
        if (apps.closing.signal.aborted) return;
        apps.app.log.warn({ instance: running.id, err: error }, "an app could not be removed yet");
        await sleep(retryMs, undefined, { signal: apps.closing.signal });
      }
    }
  });
}

async function drain(apps: AppsContext, running: Running, isGraceful: boolean): Promise<void> {
  const { machine } = running;
  if (machine !== null && isGraceful && running.isUp) {
    await apps.front.drained(machine, apps.app.config.appDrainSeconds * 1000);
  }
  await endProcess(apps, running);
  if (apps.closing.signal.aborted) return;
  await passKillPoint("app.drained");
  await removeInstance(apps, running);
}

/** Sends SIGTERM, and waits ten seconds for the process to end. */
export async function endProcess(apps: AppsContext, running: Running): Promise<void> {
  const { machine, command } = running;
  if (machine === null || command === null) return;
  // After a restart of the server, the instance has no supervision yet.
  running.supervise();
  const waited = new AbortController();
  const signal = AbortSignal.any([apps.closing.signal, waited.signal]);
  try {
    const row = await findMachineOf(apps.app.db, running.owner);
    // A frozen process receives no signal.
    if (row?.desired === "frozen") await thaw(apps.app, row);
    await apps.app.machines.connect(machine).signalCommand(command, constants.signals.SIGTERM);
    await Promise.race([
      running.ended.promise,
      sleep(endsWithinMs, undefined, { signal, ref: false }).catch(() => {}),
    ]);
  } catch {
    // A machine that does not respond is destroyed without a signal to its process.
  } finally {
    waited.abort();
  }
}

/** Removes the instance's machine and row immediately. */
export async function removeInstance(apps: AppsContext, running: Running): Promise<void> {
  const { app } = apps;
  const machine = await app.db.transaction().execute(async (tx) => {
    const released = await releaseMachine(tx, { ownerKind: "app", ownerId: running.id });
    await deleteInstance(tx, running.id);
    return released;
  });
  // The reader of the last output ends when the machine is destroyed.
  if (machine) await app.machines.destroy(machine);
  apps.running.delete(running.id);
  await running.close();
}
