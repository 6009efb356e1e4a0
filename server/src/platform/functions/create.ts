/** Creates a function with its name, code and variables. No code runs before the first deploy. */
import { randomUUID } from "node:crypto";
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireBelow } from "#accounts/plans.ts";
import { requireWritableWorkspace } from "#accounts/workspaces.ts";
import { transaction } from "#db/db.ts";
import { sealVariables } from "../environments/variables.ts";
import { requireFreeName, requireRegion } from "../projects/checks.ts";
import { type Needs, target } from "./functions.ts";
import { newKey } from "./keys.ts";
import { requireMemory } from "./limits.ts";
import type { FunctionParts } from "./parts.ts";
import { type FunctionCreate, type FunctionWithKey, toFunction } from "./schema.ts";
import { insertRow, lockAndCount } from "./store.ts";

/** Creates a function. No later response contains the returned key. */
export async function createFunction(
  app: Needs,
  parts: FunctionParts,
  actor: Actor,
  input: FunctionCreate,
): Promise<FunctionWithKey> {
  const workspace = requireWritableWorkspace(actor, input.workspace);
  const region = requireRegion(app, input.node, "node");
  requireMemory(workspace.plan, input.memory_mb);
  const id = randomUUID();
  const key = input.auth_mode === "api_key" ? newKey() : null;
  const now = app.clock.now();
  const row = await transaction(app.db, async (tx) => {
    requireBelow(workspace.plan, "functions", await lockAndCount(tx, workspace.id), workspace.id);
    await requireFreeName(tx, input.name);
    const made = await insertRow(tx, {
      id,
      workspace_id: workspace.id,
      name: input.name,
      runtime: input.runtime,
      handler_code: input.handler_code,
      dependencies: JSON.stringify(input.dependencies),
      ...(key?.columns ?? { auth_mode: "none", api_key_hash: null, api_key_hint: null }),
      idle_timeout_seconds: input.idle_timeout_seconds,
      env_sealed: sealVariables(app, "functions", id, input.env_vars),
      memory_mb: input.memory_mb,
      timeout_seconds: input.timeout_seconds,
      region,
      live_version_id: null,
      last_deployed_at: null,
      error: null,
      created_at: now,
      updated_at: now,
      deleted_at: null,
    });
    await recordActivity(tx, actor, "function.created", target(made), workspace.id, {
      runtime: made.runtime,
      auth_mode: made.auth_mode,
    });
    return made;
  });
  // From now on, the address responds that no version is deployed.
  await parts.changed(row.id);
  return { ...toFunction(app, parts, actor, row), api_key: key?.key ?? null };
}
