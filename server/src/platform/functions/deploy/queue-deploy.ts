/**
 * Queues a deploy: inserts a version of the stored code and its job in one transaction. A function has at most one
 * running deploy. The caller may wait for the end of the deploy.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { transaction } from "#db/db.ts";
import type { Transaction } from "#schema.ts";
import { addJob } from "#jobs/jobs.ts";
import { newId } from "#lib/ids.ts";
import { triggerColumns, triggerKind } from "#platform/deployments/request/triggers.ts";
import { deployInProgress } from "../errors.ts";
import { type FunctionRow, get, lockWritableFunction, type Needs, target } from "../functions.ts";
import type { FunctionParts } from "../parts.ts";
import type { FunctionRecord } from "../schema.ts";
import { findBuilding, findVersion, deleteOldVersions, insertVersion, type NewVersion } from "../store.ts";

/** Name of the task that builds versions. */
export const deployTask = "platform.functions.deploy";

/** Longest wait of a caller in milliseconds. The deploy continues afterwards. */
const waitMs = 120_000;
const lookEveryMs = 100;
/** Limit of a function's stored versions, because each contains its code. */
const keptVersions = 20;

/**
 * Deploys the stored code. With `wait`, resolves at the end of the deploy, or after two minutes with the state reached.
 */
export async function deployFunction(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  id: string,
  { wait }: { wait: boolean },
): Promise<FunctionRecord> {
  const version = await queueDeploy(app, actor, id);
  if (wait) await waitForVersion(app, version);
  return get(app, parts, actor, id);
}

/** Queues a deploy and returns the id of its version. */
export function queueDeploy(app: Needs, actor: Actor, id: string): Promise<string> {
  return transaction(app.db, async (tx) => {
    const { row } = await lockWritableFunction(tx, actor, id);
    const other = await findBuilding(tx, row.id);
    if (other) throw deployInProgress(other);
    return insertQueued(app, tx, actor, row, { trigger: triggerKind(actor), content: row });
  });
}

/**
 * Inserts a version and its job. The caller holds the function's lock, and no version of the function is being built.
 */
export async function insertQueued(
  app: Needs,
  tx: Transaction,
  actor: Actor,
  row: FunctionRow,
  { trigger, content, from }: Pick<NewVersion, "content" | "from"> & { trigger: NewVersion["trigger_kind"] },
): Promise<string> {
  const version = await insertVersion(tx, {
    id: newId("fnv_"),
    function_id: row.id,
    trigger_kind: trigger,
    ...triggerColumns(actor),
    created_at: app.clock.now(),
    content,
    ...(from && { from }),
  });
  await deleteOldVersions(tx, row.id, version.number - keptVersions);
  await addJob(tx, deployTask, {});
  const action = trigger === "rollback" ? "function.rolled_back" : "function.deploy_requested";
  await recordActivity(tx, actor, action, target(row), row.workspace_id, { version: version.number });
  return version.id;
}

/** Waits for the end of the version, for at most two minutes, and returns the version. */
export async function waitForVersion({ db }: Needs, versionId: string): Promise<void> {
  const until = performance.now() + waitMs;
  while (performance.now() < until) {
    const version = await findVersion(db, versionId);
    if (version?.state !== "building") return;
    await sleep(lookEveryMs);
  }
}
