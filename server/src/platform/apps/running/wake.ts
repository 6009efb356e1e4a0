/**
 * Wakes an app: thaws a frozen app, and starts a stopped one or one with changed variables. The app serves from the
 * commit on. Waiting requests continue when a process listens.
 */
import { accountSuspended } from "#accounts/errors.ts";
import { placeCold } from "#machines/placement/placement.ts";
import { setFrozen, thaw } from "#machines/placement/machine-of-owner.ts";
import { withReclaim } from "#machines/placement/reclaim.ts";
import { variablesOf } from "#platform/environments/variables.ts";
import type { AppsContext } from "../apps-context.ts";
import { resealEnv } from "../environment.ts";
import { nothingDeployed, wakeFailed } from "../errors.ts";
import type { Running } from "./app-instance.ts";
import { recordMove, stop, type ActivityContext } from "./sleep.ts";
import { isSuspended, lockEnvironment, move, setServed, update } from "../store.ts";

const upWithinMs = 30_000;

/**
 * Wakes the environment's app. Resolves when a process listens. Concurrent callers share a wake. Does nothing for an
 * app that is awake.
 */
export function wake(apps: AppsContext, environmentId: string, context?: ActivityContext): Promise<void> {
  return apps.waking.run(environmentId, async () => {
    const running = await apps.turn(environmentId, () => begin(apps, environmentId, context));
    if (await running.whenUp(upWithinMs)) return;
    const { command, row } = running;
    throw wakeFailed(
      command === null
        ? (row.last_exit ?? "it could not be started.")
        : `nothing listens on port ${row.run.port}.`,
    );
  });
}

async function begin(apps: AppsContext, environmentId: string, context?: ActivityContext): Promise<Running> {
  const running = apps.serving(environmentId);
  if (!running) throw nothingDeployed();
  if (running.state !== "asleep") return running;
  const { app } = apps;
  // A visitor's request must not start the app either. Callers of the API are refused earlier.
  if (await isSuspended(app.db, environmentId)) throw accountSuspended();
  const env = resealEnv(app, running.row, await variablesOf(app, app.db, environmentId));
  if (running.machine !== null && (env !== undefined || running.command === null)) await stop(apps, running);
  const isHeld = running.machine !== null;
  const { machine, reservation } = await withReclaim(app, () =>
    app.db.transaction().execute(async (tx) => {
      if (!(await lockEnvironment(tx, environmentId))) throw nothingDeployed();
      if (!(await move(tx, running.id, "live"))) throw nothingDeployed();
      await setServed(tx, environmentId, { asleep_since: null });
      if (context) await recordMove(tx, context, "environment.woken", environmentId);
      if (isHeld) return { machine: await setFrozen(tx, running.owner, false), reservation: undefined };
      const row = env && (await update(tx, running.id, { env_sealed: env }));
      if (row) running.row = row;
      return { machine: undefined, reservation: await placeCold(app, tx, running.request()) };
    }),
  );
  running.state = "live";
  if (machine) await thaw(app, machine);
  running.supervise(reservation);
  await apps.routes.refresh(environmentId);
  await apps.writeLog(running, isHeld ? "Awake." : "Awake: starting.");
  return running;
}
