/**
 * Points an alias at a version, and creates the alias if it does not exist. Active runs keep their version. The version
 * must pass the checks of a publication again, because its dependencies may be deleted and the caller grants its
 * scopes.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { DomainError } from "#lib/errors.ts";
import { invalidField } from "#agent/errors.ts";
import { requireHeld } from "#agent/workers/grant.ts";
import { getVersion, lockWritableAgent, target, workspaceOf } from "../agents.ts";
import { requireUsable } from "./checks.ts";
import type { AgentConfig } from "../config.ts";
import { aliasLimitReached } from "../errors.ts";
import { aliasesMax } from "../limits.ts";
import { findAliasFault } from "../names.ts";
import { type AgentRow, type Alias, aliasesOf, changeAgent, pointAlias } from "../store.ts";

export async function promote(
  app: Pick<App, "db" | "clock" | "machines">,
  actor: Actor,
  reference: string,
  name: string,
  wanted: string | number,
): Promise<Alias> {
  const now = app.clock.now();
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    const why = findAliasFault(name);
    if (why !== undefined) throw invalidField(["name"], why);
    const { version, config } = await getVersion(tx, agent, String(wanted));
    requireHeld(actor, config as AgentConfig, "/version");
    await requireUsable(app, tx, workspaceOf(actor, agent), config as AgentConfig).catch((error: unknown) => {
      if (!(error instanceof DomainError) || error.code !== invalidField.code) throw error;
      throw invalidField(["version"], `${version} cannot run any more: ${error.detail}`);
    });
    const before = await moveAlias(tx, { agent, name, version, at: now });
    await changeAgent(tx, agent.id, { updated_at: now });
    await recordActivity(tx, actor, "agent.alias_moved", target(agent), agent.workspace_id, {
      alias: name,
      from: before,
      to: version,
    });
    return { name, version };
  });
}

/** Points the alias at the version, and returns its previous version. The caller holds the lock on the agent's row. */
export async function moveAlias(
  tx: Db,
  { agent, name, version, at }: { agent: Pick<AgentRow, "id">; name: string; version: number; at: Date },
): Promise<number | null> {
  const aliases = (await aliasesOf(tx, [agent.id])).get(agent.id) ?? [];
  const known = aliases.find((alias) => alias.name === name);
  if (!known && aliases.length >= aliasesMax) throw aliasLimitReached(aliasesMax);
  await pointAlias(tx, { agent_id: agent.id, name, version, updated_at: at });
  return known?.version ?? null;
}
