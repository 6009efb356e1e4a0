import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { dropBuild } from "#builds/builds.ts";
import { templateNotFound } from "./errors.ts";
import { deleteTemplate } from "./store.ts";
import { target } from "./templates.ts";

/**
 * Deletes a template in any state, and cancels a running build. The image is removed with the last sandbox and snapshot
 * that uses it.
 */
export async function removeTemplate(
  app: Pick<App, "db" | "machines" | "log">,
  actor: Actor,
  id: string,
): Promise<void> {
  const cleanUp = await app.db.transaction().execute(async (tx) => {
    const row = await deleteTemplate(tx, id, workspaceIds(actor));
    if (!row) throw templateNotFound();
    await recordActivity(tx, actor, "template.deleted", target(row), row.workspace_id);
    return dropBuild(tx, app, id);
  });
  cleanUp();
}
