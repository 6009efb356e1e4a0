/** Updates an add-on, which opens or closes its public port. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { lockWritableProject } from "../projects/projects.ts";
import type { Addons } from "./addons.ts";
import { type AddonView, requireAddon, target } from "./find.ts";
import { takePublicPort } from "./access/public-ports.ts";
import type { AddonUpdate } from "./schema.ts";
import { changeRow } from "./store.ts";

export async function updateAddon(
  addons: Addons,
  actor: Actor,
  projectId: string,
  addonId: string,
  input: AddonUpdate,
): Promise<AddonView> {
  const { app } = addons;
  const changed = await app.db.transaction().execute(async (tx) => {
    await lockWritableProject(tx, actor, projectId);
    const found = await requireAddon({ db: tx }, actor, projectId, addonId);
    const { public: isPublic } = input;
    if (isPublic === undefined || isPublic === found.public) return found;
    const row = await changeRow(tx, found.id, {
      public: isPublic,
      public_port: isPublic ? await takePublicPort(app, tx) : null,
      updated_at: app.clock.now(),
    });
    await recordActivity(tx, actor, "addon.updated", target(found), found.workspace_id, {
      project: found.project_name,
      public: isPublic,
    });
    return { ...found, ...row };
  });
  addons.applyChange(changed);
  return changed;
}
