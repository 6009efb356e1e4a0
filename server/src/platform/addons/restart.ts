/**
 * Restarts an add-on on request. A running process is stopped gracefully and started again; a stopped one starts at
 * once.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { requireNotSuspended } from "#accounts/workspaces.ts";
import { getProject, workspaceOf } from "../projects/projects.ts";
import type { Addons } from "./addons.ts";
import { type AddonView, requireAddon, target } from "./find.ts";

/** Restarts the add-on. Returns it once the database responds, or after a minute. */
export async function restartAddon(
  addons: Addons,
  actor: Actor,
  projectId: string,
  addonId: string,
): Promise<AddonView> {
  const { app } = addons;
  const row = await requireAddon(app, actor, projectId, addonId);
  requireNotSuspended(workspaceOf(actor, await getProject(app, actor, projectId)));
  await recordActivity(app.db, actor, "addon.restarted", target(row), row.workspace_id, {
    project: row.project_name,
  });
  await addons.restart(addonId);
  return requireAddon(app, actor, projectId, addonId);
}
