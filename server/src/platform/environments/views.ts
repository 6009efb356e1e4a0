/** Environments in lists. The caller has checked access to the projects. */
import type { Db } from "#schema.ts";
import { type EnvironmentView, listViews } from "./store.ts";

export type { EnvironmentView, LastDeploymentRow } from "./store.ts";

/** Returns the environments of projects by project, production first. */
export async function environmentsOf(
  db: Db,
  projectIds: readonly string[],
): Promise<Map<string, EnvironmentView[]>> {
  const views = Map.groupBy(await listViews(db, projectIds), ({ project_id }) => project_id);
  return new Map(projectIds.map((id) => [id, views.get(id) ?? []]));
}
