/** Deletes a toolset, unless an alias points at a version that uses it. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { findServingAgents } from "../agents/versions/usage-of-configs.ts";
import { revokeAllConnections } from "../oauth/revocation.ts";
import { toolsetInUse } from "./errors.ts";
import { deleteToolset } from "./store.ts";
import { lockReachable, target } from "./toolsets.ts";

export async function remove(app: Pick<App, "db">, actor: Actor, id: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const row = await lockReachable(tx, actor, id);
    const users = await findServingAgents(tx, row.workspace_id, (config) =>
      config.toolsets.some(({ toolset_id }) => toolset_id === id),
    );
    if (users.length > 0) throw toolsetInUse(users);
    await revokeAllConnections(tx, id);
    await deleteToolset(tx, id);
    await recordActivity(tx, actor, "agent_toolset.deleted", target(row), row.workspace_id);
  });
}
