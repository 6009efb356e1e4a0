/**
 * An environment serves a branch of a project at its own host. This folder owns the record: branch, size, host and
 * variables.
 *
 * A project has exactly one production environment for its whole life. Every environment has its own host. Only an
 * explicit request and the environment's processes can read the variables.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { getProject, type ProjectRow } from "../projects/projects.ts";
import { environmentNotFound } from "./errors.ts";
import { type EnvironmentResponse, toEnvironment } from "./schema.ts";
import { type EnvironmentRow, findRow, listViews } from "./store.ts";
import { openVariables, type Variables } from "./variables.ts";

export type { EnvironmentRow } from "./store.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Returns an environment of a project in the actor's workspaces. Without `environmentId`, returns production. */
export async function getEnvironment(
  app: Pick<App, "db">,
  actor: Actor,
  projectId: string,
  environmentId: string | undefined,
): Promise<{ project: ProjectRow; environment: EnvironmentRow }> {
  const project = await getProject(app, actor, projectId);
  const environment = await findRow(app.db, project.id, environmentId);
  if (!environment) throw environmentNotFound();
  return { project, environment };
}

/** Lists production first, then the others, newest first. */
export async function list(app: Needs, actor: Actor, projectId: string): Promise<EnvironmentResponse[]> {
  const { id } = await getProject(app, actor, projectId);
  return (await listViews(app.db, [id])).map((view) => toEnvironment(app, view));
}

export async function get(
  app: Needs,
  actor: Actor,
  projectId: string,
  id: string,
): Promise<EnvironmentResponse> {
  const { environment } = await getEnvironment(app, actor, projectId, id);
  return render(app, environment);
}

export async function readVariables(
  app: Needs,
  actor: Actor,
  projectId: string,
  environmentId: string,
): Promise<Variables> {
  const { environment } = await getEnvironment(app, actor, projectId, environmentId);
  return openVariables(app, "environments", environment);
}

/** Returns the environment as the response to a change contains it. */
export async function render(
  app: Needs,
  { id, project_id }: Pick<EnvironmentRow, "id" | "project_id">,
): Promise<EnvironmentResponse> {
  const view = (await listViews(app.db, [project_id])).find((one) => one.id === id);
  if (!view) throw environmentNotFound();
  return toEnvironment(app, view);
}

export function target(row: Pick<EnvironmentRow, "id" | "host_label">) {
  return { kind: "environment", id: row.id, label: row.host_label };
}
