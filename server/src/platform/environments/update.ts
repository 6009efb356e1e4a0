import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { setBranch, lockWritableProject } from "../projects/projects.ts";
import { render, target } from "./environments.ts";
import { environmentNotFound } from "./errors.ts";
import type { EnvironmentResponse, EnvironmentUpdate } from "./schema.ts";
import { requireSize } from "./sizes.ts";
import { changeRow, lockRow } from "./store.ts";
import { mergeVariables, openVariables, sealVariables } from "./variables.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Changes an environment. A running app keeps its settings until its next deployment, restart or wake. */
export async function updateEnvironment(
  app: Needs,
  actor: Actor,
  projectId: string,
  environmentId: string,
  input: EnvironmentUpdate,
): Promise<EnvironmentResponse> {
  const changed = await app.db.transaction().execute(async (tx) => {
    const { project, workspace } = await lockWritableProject(tx, actor, projectId);
    const row = await lockRow(tx, project.id, environmentId);
    if (!row) throw environmentNotFound();
    // The current size may be above the plan, so setting it again is allowed.
    if (input.size !== undefined && input.size !== row.size) requireSize(workspace.plan, input.size);
    const now = app.clock.now();
    if (input.branch !== undefined && row.kind === "production") {
      await setBranch(tx, project.id, input.branch, now);
    }
    const merged = input.env_vars && mergeVariables(openVariables(app, "environments", row), input.env_vars);
    await recordActivity(tx, actor, "environment.updated", target(row), project.workspace_id, {
      fields: Object.keys(input),
    });
    return changeRow(tx, row.id, {
      updated_at: now,
      ...(input.branch === undefined ? {} : { branch: input.branch }),
      ...(input.size === undefined ? {} : { size: input.size }),
      ...(merged === undefined ? {} : { env_sealed: sealVariables(app, "environments", row.id, merged) }),
    });
  });
  return render(app, changed);
}
