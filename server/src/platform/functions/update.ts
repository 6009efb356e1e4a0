/**
 * Updates a function. Changed code and dependencies apply with the next deploy. Access rules apply at once, and other
 * changes when an instance starts next.
 */
import { isDeepStrictEqual } from "node:util";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireWorkspace } from "#accounts/workspaces.ts";
import { transaction } from "#db/db.ts";
import { mergeVariables, openVariables, sealVariables } from "../environments/variables.ts";
import { requireFreeName } from "../projects/checks.ts";
import { invalidField } from "../input/schema.ts";
import { problemIn } from "./deploy/dependencies.ts";
import { functionDeployed, noApiKey } from "./errors.ts";
import { type FunctionRow, lockWritableFunction, type Needs, target } from "./functions.ts";
import { newKey } from "./keys.ts";
import { requireMemory } from "./limits.ts";
import type { FunctionParts } from "./parts.ts";
import { type FunctionUpdate, type FunctionWithKey, toFunction } from "./schema.ts";
import { changeRow, findVersion, type FunctionChange, type VersionRow } from "./store.ts";

/** Updates a function. Returns a key if the change creates one. */
export async function updateFunction(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  id: string,
  input: FunctionUpdate,
): Promise<FunctionWithKey> {
  const { row, key } = await transaction(app.db, async (tx) => {
    const { row: found, workspace } = await lockWritableFunction(tx, actor, id);
    refuseFixed(actor, found, input);
    if (input.memory_mb !== undefined && input.memory_mb !== found.memory_mb)
      requireMemory(workspace.plan, input.memory_mb);
    if (input.name !== undefined && input.name !== found.name) {
      if (found.live_version_id !== null || found.is_building) throw functionDeployed();
      await requireFreeName(tx, input.name);
    }
    const live = found.live_version_id === null ? undefined : await findVersion(tx, found.live_version_id);
    const made = input.auth_mode === "api_key" && found.auth_mode === "none" ? newKey() : null;
    const changed = await changeRow(tx, found.id, {
      ...plain(input),
      ...code(found, live, input),
      ...variables(app, found, input.env_vars),
      ...made?.columns,
      ...(input.auth_mode === "none" ? { auth_mode: "none", api_key_hash: null, api_key_hint: null } : {}),
      updated_at: app.clock.now(),
    });
    await recordActivity(tx, actor, "function.updated", target(changed), changed.workspace_id, {
      fields: Object.keys(input),
      ...(changed.name === found.name ? {} : { from: found.name }),
    });
    return { row: changed, key: made?.key ?? null };
  });
  await parts.changed(row.id);
  return { ...toFunction(app, parts, actor, row), api_key: key };
}

/** Replaces the key. When this function returns, the earlier key is revoked. */
export async function rotateKey(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  id: string,
): Promise<FunctionWithKey> {
  const made = newKey();
  const row = await transaction(app.db, async (tx) => {
    const { row: found } = await lockWritableFunction(tx, actor, id);
    if (found.auth_mode !== "api_key") throw noApiKey();
    const changed = await changeRow(tx, found.id, { ...made.columns, updated_at: app.clock.now() });
    await recordActivity(tx, actor, "function.key_rotated", target(changed), changed.workspace_id);
    return changed;
  });
  await parts.changed(row.id);
  return { ...toFunction(app, parts, actor, row), api_key: made.key };
}

/** Refuses changes of fixed fields. Their current values are accepted, so that a response is a valid update. */
function refuseFixed(actor: Actor, row: FunctionRow, input: FunctionUpdate): void {
  if (input.runtime !== undefined && input.runtime !== row.runtime)
    throw invalidField("runtime", "cannot change: create another function for another runtime");
  if (input.node !== undefined && input.node !== row.region)
    throw invalidField("node", "cannot change: create another function in that region");
  if (input.workspace && requireWorkspace(actor, input.workspace).id !== row.workspace_id)
    throw invalidField("workspace", "cannot change: create another function in that workspace");
}

/** Fields that are stored unchanged. */
const plainFields = [
  "name",
  "idle_timeout_seconds",
  "memory_mb",
  "timeout_seconds",
] as const satisfies (keyof FunctionUpdate & keyof FunctionRow)[];

function plain(input: FunctionUpdate): FunctionChange {
  return Object.fromEntries(
    plainFields.flatMap((field) => (input[field] === undefined ? [] : [[field, input[field]]])),
  );
}

/**
 * Returns the change of code and dependencies. Equal code is no change, and a change back to the live code leaves no
 * deploy pending.
 */
function code(
  row: FunctionRow,
  live: VersionRow | undefined,
  { handler_code, dependencies }: FunctionUpdate,
): FunctionChange {
  const change: FunctionChange = {};
  if (handler_code !== undefined && handler_code !== row.handler_code) change.handler_code = handler_code;
  if (dependencies !== undefined && !isDeepStrictEqual(dependencies, row.dependencies)) {
    const wrong = problemIn(row.runtime, dependencies);
    if (wrong) throw invalidField(["dependencies", wrong.name], wrong.problem);
    change.dependencies = JSON.stringify(dependencies);
  }
  if (Object.keys(change).length === 0) return {};
  const isLive =
    live?.handler_code === (handler_code ?? row.handler_code) &&
    isDeepStrictEqual(live.dependencies, dependencies ?? row.dependencies);
  return { ...change, pending_deploy: !isLive };
}

function variables(app: Needs, row: FunctionRow, change: FunctionUpdate["env_vars"]): FunctionChange {
  if (change === undefined) return {};
  const merged = mergeVariables(openVariables(app, "functions", row), change);
  return { env_sealed: sealVariables(app, "functions", row.id, merged) };
}
