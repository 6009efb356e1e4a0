/**
 * Switches an environment to another instance in one transaction, and then sends a request through the public listener.
 * If another machine responds, the switch is reverted, and no request of the earlier instance is lost.
 */
import type { Transaction } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import type { AppsContext } from "../apps-context.ts";
import { drainLater } from "./drain.ts";
import { AppUnhealthy } from "../errors.ts";
import { unhealthyError } from "../output/last-output.ts";
import type { Running } from "../running/app-instance.ts";
import { WorkSigns } from "../running/work-signs.ts";
import { findAsleepSince, findServing, lockEnvironment, move, setServed } from "../store.ts";

/** Earlier serving instance, and its state. */
interface Before {
  instanceId: string;
  deploymentId: string;
  state: "live" | "asleep";
  asleepSince: Date | null;
}

export function takeOver(apps: AppsContext, running: Running, signal: AbortSignal): Promise<void> {
  const { environmentId } = running;
  return apps.turn(environmentId, async () => {
    signal.throwIfAborted();
    const { machine } = running;
    if (machine === null || running.command === null)
      throw new AppUnhealthy("The app ended before it could serve.");
    const before = await apps.app.db.transaction().execute((tx) => switchTo(tx, running));
    running.state = "live";
    const previous = before && apps.running.get(before.instanceId);
    if (previous) previous.state = "draining";
    await running.whenUp(1_000);
    await apps.routes.refresh(environmentId);
    await passKillPoint("app.switched");
    try {
      const { healthCheckPath, hostname } = running.row.run;
      const hasProgressed = progressOf(apps, running);
      await apps.front.visit(apps.routes.hostOf(hostname), healthCheckPath, {
        machine,
        hasProgressed,
        signal,
      });
    } catch (error) {
      await apps.app.db.transaction().execute((tx) => switchBack(tx, running, before));
      running.state = "starting";
      if (previous && before) previous.state = before.state;
      await apps.routes.refresh(environmentId);
      signal.throwIfAborted();
      throw await unhealthyError(apps, running, `${(error as Error).message}.`, { cause: error });
    }
    if (previous) drainLater(apps, previous, { isGraceful: true });
  });
}

/** Returns a function that is true while a slow app uses CPU time, and throws once the app has ended. */
function progressOf({ app }: AppsContext, running: Running): () => Promise<boolean> {
  const signs = new WorkSigns(app, running);
  let ended: string | undefined;
  void running.ended.promise.then(({ message }) => (ended = message));
  return async () => {
    if (ended !== undefined) throw new Error(ended.replace(/^It /, "the app ").replace(/\.$/, ""));
    return (await signs.read()).usedCpu;
  };
}

async function switchTo(tx: Transaction, { id, environmentId, row }: Running): Promise<Before | undefined> {
  if (!(await lockEnvironment(tx, environmentId))) throw new AppUnhealthy("The environment was deleted.");
  const serving = await findServing(tx, environmentId);
  const asleepSince = await findAsleepSince(tx, environmentId);
  if (serving) await move(tx, serving.id, "draining");
  if (!(await move(tx, id, "live"))) throw new AppUnhealthy("The app was removed before it could serve.");
  await setServed(tx, environmentId, { live_deployment_id: row.deployment_id, asleep_since: null });
  if (!serving) return undefined;
  const state = serving.state === "asleep" ? "asleep" : "live";
  return { instanceId: serving.id, deploymentId: serving.deployment_id, state, asleepSince };
}

async function switchBack(
  tx: Transaction,
  { id, environmentId }: Running,
  before: Before | undefined,
): Promise<void> {
  if (!(await lockEnvironment(tx, environmentId))) return;
  await move(tx, id, "starting");
  if (before) await move(tx, before.instanceId, before.state);
  await setServed(tx, environmentId, {
    live_deployment_id: before?.deploymentId ?? null,
    asleep_since: before?.asleepSince ?? null,
  });
}
