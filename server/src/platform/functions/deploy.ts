/**
 * A deploy is asked for: what is stored becomes a version, which is a row and a job from the same transaction on. One of
 * a function at a time; whoever asks may wait for its end.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { transaction } from "#db/db.ts";
import { addJob } from "#jobs/jobs.ts";
import { newId } from "#lib/ids.ts";
import { deployInProgress } from "./errors.ts";
import { get, lockWritableFunction, type Needs, target } from "./functions.ts";
import type { FunctionParts } from "./parts.ts";
import type { FunctionRecord } from "./schema.ts";
import { findBuilding, findVersion, forgetOld, insertVersion } from "./store.ts";

/** The task that takes versions in turn. */
export const deployTask = "platform.functions.deploy";

/** A caller's patience; the deploy goes on behind it. */
const waitMs = 120_000;
const lookEveryMs = 100;
/** Each holds its code. */
const keptVersions = 20;

/** With `wait` it answers at the end, or as it is after two minutes. */
export async function deployFunction(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  id: string,
  { wait }: { wait: boolean },
): Promise<FunctionRecord> {
  const version = await queueDeploy(app, actor, id);
  if (wait) await ended(app, version);
  return get(app, parts, actor, id);
}

/** Answers the version's id. */
export function queueDeploy(app: Needs, actor: Actor, id: string): Promise<string> {
  return transaction(app.db, async (tx) => {
    const { row } = await lockWritableFunction(tx, actor, id);
    const other = await findBuilding(tx, row.id);
    if (other) throw deployInProgress(other);
    const version = await insertVersion(tx, row, { id: newId("fnv_"), now: app.clock.now() });
    await forgetOld(tx, row.id, version.number - keptVersions);
    await addJob(tx, deployTask, {});
    await recordActivity(tx, actor, "function.deploy_requested", target(row), row.workspace_id, {
      version: version.number,
    });
    return version.id;
  });
}

async function ended({ db }: Needs, versionId: string): Promise<void> {
  const until = performance.now() + waitMs;
  while (performance.now() < until) {
    const version = await findVersion(db, versionId);
    if (version?.state !== "building") return;
    await sleep(lookEveryMs);
  }
}
