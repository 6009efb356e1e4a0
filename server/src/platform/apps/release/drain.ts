/**
 * How an instance goes: what is under way in it is waited for, its process group is asked to end, and after ten seconds
 * its machine is taken away, whatever still runs in there. Its state says so in the database, so that a server that
 * starts finishes what another one began.
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

/** In the background, until it is gone. `isGraceful`: requests of this process may still be under way in it. */
export function drainLater(
  apps: AppsContext,
  running: Running,
  { isGraceful }: { isGraceful: boolean },
): void {
  apps.inBackground("an app that serves no more could not be let go of yet", async () => {
    for (;;) {
      try {
        return await drain(apps, running, isGraceful);
      } catch (error) {
        if (apps.closing.signal.aborted) return;
        apps.app.log.warn({ instance: running.id, err: error }, "an app could not be let go of yet");
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
  await letGo(apps, running);
}

/** SIGTERM, and ten seconds to heed it. */
export async function endProcess(apps: AppsContext, running: Running): Promise<void> {
  const { machine, command } = running;
  if (machine === null || command === null) return;
  // Where an earlier server began this, nobody listens for its end yet.
  running.supervise();
  const waited = new AbortController();
  const signal = AbortSignal.any([apps.closing.signal, waited.signal]);
  try {
    const row = await findMachineOf(apps.app.db, running.owner);
    // One that is held hears nothing.
    if (row?.desired === "frozen") await thaw(apps.app, row);
    await apps.app.machines.connect(machine).signalCommand(command, constants.signals.SIGTERM);
    await Promise.race([
      running.ended.promise,
      sleep(endsWithinMs, undefined, { signal, ref: false }).catch(() => {}),
    ]);
  } catch {
    // A machine that cannot be asked is taken away unasked.
  } finally {
    waited.abort();
  }
}

/** Its machine and its record, now. */
export async function letGo(apps: AppsContext, running: Running): Promise<void> {
  const { app } = apps;
  const machine = await app.db.transaction().execute(async (tx) => {
    const released = await releaseMachine(tx, { ownerKind: "app", ownerId: running.id });
    await deleteInstance(tx, running.id);
    return released;
  });
  // What it said last is still being read: it is its machine's end that ends that.
  if (machine) await app.machines.destroy(machine);
  apps.running.delete(running.id);
  await running.close();
}
