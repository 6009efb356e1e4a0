/** Creates an agent, its first version and the alias `prod` in one transaction. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace, requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { newId } from "#lib/ids.ts";
import { render, requireName, target } from "./agents.ts";
import { requireSchema, requireUsable } from "./versions/checks.ts";
import { requireHeld } from "../workers/grant.ts";
import { agentLimitReached, nameTaken } from "./errors.ts";
import { agentsMax, firstAlias } from "./limits.ts";
import { versionValues } from "./versions/publish.ts";
import type { Agent, AgentCreate } from "./schema.ts";
import { insertAgent, insertVersion, lockAndCountAgents, pointAlias } from "./store.ts";

export async function create(
  app: Pick<App, "db" | "clock" | "machines">,
  actor: Actor,
  input: AgentCreate,
): Promise<Agent> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  requireName(input.name);
  requireHeld(actor, input.config);
  await requireSchema(workspace, input.config);
  const now = app.clock.now();
  return app.db.transaction().execute(async (tx) => {
    if ((await lockAndCountAgents(tx, workspace.id)) >= agentsMax) throw agentLimitReached(agentsMax);
    await requireUsable(app, tx, workspace, input.config);
    const row = await insertAgent(tx, {
      id: newId("agt_"),
      workspace_id: workspace.id,
      name: input.name,
      description: input.description ?? null,
      latest_version: 1,
      created_at: now,
    });
    if (!row) throw nameTaken(input.name);
    await insertVersion(tx, versionValues(actor, row, { config: input.config, number: 1, at: now }));
    await pointAlias(tx, { agent_id: row.id, name: firstAlias, version: 1, updated_at: now });
    await recordActivity(tx, actor, "agent.created", target(row), workspace.id);
    return render(tx, row);
  });
}
