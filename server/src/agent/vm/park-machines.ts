/**
 * Machines that nobody uses go to disk, also while a run of their session waits for a person; those in which a run goes
 * on are kept alive; those whose session is gone are destroyed; commands whose run is over are killed. Each is a look at
 * the table now and then, so a server that was down catches up with its first.
 */
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { keepAllAlive } from "#sandbox/sandboxes/lifecycle/keep-alive.ts";
import { park } from "#sandbox/sandboxes/lifecycle/pause.ts";
import { destroyLeft } from "./terminate-machines.ts";
import { killOrphans } from "./kill-commands.ts";
import { endParking, findIdle, findInUse, findParking, markParking, type Parked } from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const lookEveryMs = 1_000;
const keepEveryMs = 10_000;
const destroyEveryMs = 60_000;
/** A pause is a second of disk and processor. */
const pausesAtOnce = 2;
const pausesOfOneLook = 20;
/** One that can't be paused (a file in the way, the plan's cap) runs on, and is tried again after this. */
const againAfterMs = 60_000;

/** One look at a time, and one server on a host: what is on its way at the beginning of a look is what died. */
export async function parkIdle(app: Needs, failed: Map<string, number> = new Map()): Promise<void> {
  const now = app.clock.now();
  for (const [session, at] of failed) if (at + againAfterMs <= now.getTime()) failed.delete(session);
  const begun = await findParking(app.db);
  const idle = await findIdle(app.db, now, { except: [...failed.keys()], limit: pausesOfOneLook });
  const places = new Semaphore(pausesAtOnce);
  const finish = async (row: Parked) => {
    if (!(await carryOut(app, row))) failed.set(row.session_id, now.getTime());
  };
  await Promise.all([
    ...begun.map((row) => places.run(() => finish(row))),
    ...idle.map((row) =>
      places.run(async () => {
        if (!(await markParking(app.db, row, now))) return;
        await passKillPoint("agent.vm.parking");
        await finish(row);
      }),
    ),
  ]);
}

/** One that does not run any more, whatever became of it, is found as it is by the next tool. */
async function carryOut(app: Needs, row: Parked): Promise<boolean> {
  try {
    await park(app, row.sandbox_id, systemActor("parking"));
    await passKillPoint("agent.vm.paused");
    await endParking(app.db, row, "parked");
    return true;
  } catch (error) {
    app.log.warn({ error, session: row.session_id }, "a session's machine could not be parked yet");
    await endParking(app.db, row, "awake");
    return false;
  }
}

/** None runs out under a run. */
export async function keepInUse(app: Pick<App, "db" | "clock">): Promise<void> {
  const ids = await findInUse(app.db);
  if (ids.length > 0) await keepAllAlive(app, ids);
}

/** Starts the looks; answers how to stop them. */
export function startMachineCare(app: Needs & Pick<App, "secrets">): { stop: () => void } {
  const failed = new Map<string, number>();
  const notKilled = new Map<string, number>();
  const every = (ms: number, what: string, work: () => Promise<void>) => {
    let isBusy = false;
    return setInterval(() => {
      if (isBusy) return;
      isBusy = true;
      work()
        .catch((error: unknown) => app.log.error({ error }, what))
        .finally(() => (isBusy = false));
    }, ms);
  };
  const timers = [
    every(lookEveryMs, "idle machines of sessions could not be looked for", () => parkIdle(app, failed)),
    every(lookEveryMs, "commands of ended runs could not be looked for", () => killOrphans(app, notKilled)),
    every(keepEveryMs, "machines of runs could not be kept alive", () => keepInUse(app)),
    every(destroyEveryMs, "machines whose session is gone could not be looked for", () => destroyLeft(app)),
  ];
  return { stop: () => timers.forEach(clearInterval) };
}
