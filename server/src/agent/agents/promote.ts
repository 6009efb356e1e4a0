/** An alias moves, forwards or back; one that is not there is made. Runs that began stay with the version they have. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import { invalidField } from "../errors.ts";
import { getVersion, lockWritableAgent, target } from "./agents.ts";
import { aliasLimitReached } from "./errors.ts";
import { aliasesMax } from "./limits.ts";
import { whyNotAlias } from "./names.ts";
import { type AgentRow, type Alias, aliasesOf, changeAgent, pointAlias } from "./store.ts";

export async function promote(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  reference: string,
  name: string,
  wanted: string | number,
): Promise<Alias> {
  const now = app.clock.now();
  return app.db.transaction().execute(async (tx) => {
    const agent = await lockWritableAgent(tx, actor, reference);
    const why = whyNotAlias(name);
    if (why !== undefined) throw invalidField(["name"], why);
    const { version } = await getVersion(tx, agent, String(wanted));
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

/** Answers where it pointed before. The caller holds the agent's row. */
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
