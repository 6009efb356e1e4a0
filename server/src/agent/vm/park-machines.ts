/**
 * Sweeps of sessions' machines. Idle machines are parked on disk, also while a run of their session waits for a person.
 * Machines of active runs stay alive. Machines of ended sessions are deleted, and commands of ended runs are killed.
 * The first sweep after a restart covers the time before the restart.
 */
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { keepAllAlive } from "#sandbox/sandboxes/lifecycle/keep-alive.ts";
import { park } from "#sandbox/sandboxes/lifecycle/pause.ts";
import { terminateOrphans } from "./terminate-machines.ts";
import { killOrphans } from "./kill-commands.ts";
import { endParking, findIdle, findInUse, findParking, markParking, type ParkingRow } from "./store.ts";

type Needs = Pick<App, "db" | "machines" | "clock" | "log">;

const lookEveryMs = 1_000;
const keepEveryMs = 10_000;
const destroyEveryMs = 60_000;
/** Maximum number of concurrent pauses. A pause uses disk and processor for about a second. */
const pausesAtOnce = 2;
const pausesOfOneLook = 20;
/** Delay before a retry. A machine that cannot be paused (a blocking file, the plan's cap) keeps running. */
const againAfterMs = 60_000;

/**
 * Parks idle machines. Requires one server per host, and one call of this function at a time. So a machine that is
 * marked as parking at the start was marked by a crashed server.
 */
export async function parkIdle(app: Needs, failed: Map<string, number> = new Map()): Promise<void> {
  const now = app.clock.now();
  for (const [session, at] of failed) if (at + againAfterMs <= now.getTime()) failed.delete(session);
  const begun = await findParking(app.db);
  const idle = await findIdle(app.db, now, { except: [...failed.keys()], limit: pausesOfOneLook });
  const places = new Semaphore(pausesAtOnce);
  const finish = async (row: ParkingRow) => {
    if (!(await parkMachine(app, row))) failed.set(row.session_id, now.getTime());
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

/** Parks a machine. A machine that no longer runs also counts as an attempt; the next tool call finds its state. */
async function parkMachine(app: Needs, row: ParkingRow): Promise<boolean> {
  try {
    await park(app, row.sandbox_id, systemActor("parking"));
    await passKillPoint("agent.vm.paused");
    await endParking(app.db, row, "parked");
    return true;
  } catch (error) {
    app.log.warn({ error, session: row.session_id }, "could not park a session's machine; will retry");
    await endParking(app.db, row, "awake");
    return false;
  }
}

/** Extends the lifetime of machines whose sessions have active runs. */
export async function keepMachinesAlive(app: Pick<App, "db" | "clock">): Promise<void> {
  const ids = await findInUse(app.db);
  if (ids.length > 0) await keepAllAlive(app, ids);
}

/** Starts the sweeps. Returns a function that stops them. */
export function startMachineSweeps(app: Needs & Pick<App, "secrets">): { stop: () => void } {
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
    every(lookEveryMs, "could not sweep idle machines", () => parkIdle(app, failed)),
    every(lookEveryMs, "could not sweep commands of ended runs", () => killOrphans(app, notKilled)),
    every(keepEveryMs, "could not extend the lifetime of machines with active runs", () =>
      keepMachinesAlive(app),
    ),
    every(destroyEveryMs, "could not sweep machines of ended sessions", () => terminateOrphans(app)),
  ];
  return { stop: () => timers.forEach(clearInterval) };
}
