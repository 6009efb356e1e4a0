/** Creates environments: production together with its project, the others by a request. */
import { randomUUID } from "node:crypto";
import type { Actor } from "#accounts/actor.ts";
import type { Plan } from "#accounts/roles.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireBelow } from "#accounts/plans.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { lockWritableProject } from "../projects/projects.ts";
import { render, target } from "./environments.ts";
import { environmentExists, hostTooLong } from "./errors.ts";
import type { EnvironmentCreate, EnvironmentResponse } from "./schema.ts";
import { largestSize } from "./sizes.ts";
import { type EnvironmentRow, insertRow, listRows } from "./store.ts";
import { sealVariables, type Variables } from "./variables.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export async function createEnvironment(
  app: Needs,
  actor: Actor,
  projectId: string,
  input: EnvironmentCreate,
): Promise<EnvironmentResponse> {
  const made = await app.db.transaction().execute(async (tx) => {
    const { project, workspace } = await lockWritableProject(tx, actor, projectId);
    const hostLabel = hostLabelOf(project.name, input);
    // The project's row is locked, so no other environment is created before the commit.
    const others = await listRows(tx, project.id);
    if (others.some(({ name }) => name === input.name)) throw environmentExists(input.name);
    requireBelow(workspace.plan, "environmentsPerProject", others.length, workspace.id);
    const row = await addEnvironment(app, tx, {
      projectId: project.id,
      name: input.name,
      kind: input.kind,
      branch: input.branch,
      hostLabel,
      plan: workspace.plan,
      variables: input.env_vars,
    });
    await recordActivity(tx, actor, "environment.created", target(row), project.workspace_id, {
      project: project.name,
      kind: row.kind,
      branch: row.branch,
    });
    return row;
  });
  return render(app, made);
}

/** Inserts an environment in the caller's transaction. The caller has checked that name and host are free. */
export async function addEnvironment(
  app: Pick<App, "secrets" | "clock">,
  tx: Db,
  wanted: {
    projectId: string;
    name: string;
    kind: EnvironmentRow["kind"];
    branch: string;
    hostLabel: string;
    plan: Plan;
    variables: Variables;
  },
): Promise<EnvironmentRow> {
  const id = randomUUID();
  const now = app.clock.now();
  return insertRow(tx, {
    id,
    project_id: wanted.projectId,
    name: wanted.name,
    kind: wanted.kind,
    branch: wanted.branch,
    host_label: wanted.hostLabel,
    size: largestSize(wanted.plan),
    env_sealed: sealVariables(app, "environments", id, wanted.variables),
    live_deployment_id: null,
    asleep_since: null,
    deleted_at: null,
    created_at: now,
    updated_at: now,
  });
}

/**
 * Returns the first label of the environment's host. A slug has no two hyphens in a row, so no two environments share a
 * label.
 */
export function hostLabelOf(
  slug: string,
  { kind, name }: { kind: EnvironmentRow["kind"]; name: string },
): string {
  const label = kind === "production" ? slug : `${slug}--${name}`;
  if (label.length > 63) throw hostTooLong(label);
  return label;
}
