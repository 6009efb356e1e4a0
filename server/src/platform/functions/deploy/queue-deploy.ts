/**
 * A deploy is asked for: what is stored becomes a version, which is a row and a job from the same transaction on. One of
 * a function at a time; whoever asks may wait for its end.
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
import { findBuilding, findVersion, forgetOld, insertVersion, type NewVersion } from "../store.ts";

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
  if (wait) await waitForVersion(app, version);
  return get(app, parts, actor, id);
}

/** Answers the version's id. */
export function queueDeploy(app: Needs, actor: Actor, id: string): Promise<string> {
  return transaction(app.db, async (tx) => {
    const { row } = await lockWritableFunction(tx, actor, id);
    const other = await findBuilding(tx, row.id);
    if (other) throw deployInProgress(other);
    return insertQueued(app, tx, actor, row, { trigger: triggerKind(actor), content: row });
  });
}

/** Inserts a version and its job. The caller holds the function's row, and no version of it is being built. */
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
  await forgetOld(tx, row.id, version.number - keptVersions);
  await addJob(tx, deployTask, {});
  const deed = trigger === "rollback" ? "function.rolled_back" : "function.deploy_requested";
  await recordActivity(tx, actor, deed, target(row), row.workspace_id, { version: version.number });
  return version.id;
}

/** Waits for the end of the version, at most two minutes. */
export async function waitForVersion({ db }: Needs, versionId: string): Promise<void> {
  const until = performance.now() + waitMs;
  while (performance.now() < until) {
    const version = await findVersion(db, versionId);
    if (version?.state !== "building") return;
    await sleep(lookEveryMs);
  }
}
