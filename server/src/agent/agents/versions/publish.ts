/** Publishes a version and moves the given aliases in one transaction. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { invalidField } from "#agent/errors.ts";
import { requireHeld } from "#agent/workers/grant.ts";
import { lockWritableAgent, renderVersion, target, workspaceOf } from "../agents.ts";
import { requireSchema, requireUsable } from "./checks.ts";
import type { AgentConfig } from "../config.ts";
import { moveAlias } from "./promote.ts";
import { findAliasFault } from "../names.ts";
import type { Version, VersionCreate } from "../schema.ts";
import { type AgentRow, changeAgent, insertVersion } from "../store.ts";

export async function publish(
  app: Pick<App, "db" | "clock" | "machines">,
  actor: Actor,
  reference: string,
  input: VersionCreate,
): Promise<Version> {
  for (const [index, name] of (input.promote ?? []).entries()) {
    const why = findAliasFault(name);
    if (why !== undefined) throw invalidField(["promote", index], why);
  }
  requireHeld(actor, input.config);
  await requireSchema(homeWorkspace(actor), input.config);
  const now = app.clock.now();
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    await requireUsable(app, tx, workspaceOf(actor, agent), input.config);
    const number = agent.latest_version + 1;
    const row = await insertVersion(
      tx,
      versionValues(actor, agent, { config: input.config, notes: input.notes, number, at: now }),
    );
    await changeAgent(tx, agent.id, { latest_version: number, updated_at: now });
    for (const name of new Set(input.promote)) await moveAlias(tx, { agent, name, version: number, at: now });
    await recordActivity(tx, actor, "agent.version_published", target(agent), agent.workspace_id, {
      version: number,
      promoted: input.promote ?? [],
    });
    return renderVersion(tx, row);
  });
}

/** Returns the columns of a new version. */
export function versionValues(
  { kind, id, label }: Actor,
  agent: Pick<AgentRow, "id">,
  version: { config: AgentConfig; notes?: string | null | undefined; number: number; at: Date },
) {
  return {
    agent_id: agent.id,
    version: version.number,
    config: JSON.stringify(version.config),
    notes: version.notes ?? null,
    created_by: JSON.stringify({ kind, id, label }),
    created_at: version.at,
  };
}
