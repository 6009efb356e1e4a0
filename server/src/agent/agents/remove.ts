/**
 * Deletes unused agents, versions and aliases. A transaction that deletes an agent or a version locks the workspace's
 * counts, as every invoke does before it commits. So either the invoke is first and its run prevents the deletion, or
 * the invoke fails because the agent no longer exists.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { referableIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { agentNotFound } from "../errors.ts";
import { findActiveOfAgent } from "../runs/store.ts";
import { transactionWithRetry } from "../runs/journal/transaction-with-retry.ts";
import { countSchedules } from "../schedules/schedules.ts";
import { lockCounts, countPinned } from "../sessions/store.ts";
import { terminateMachinesOfAgent } from "../vm/terminate-machines.ts";
import { countWebhooks } from "../webhooks/webhooks.ts";
import { getAgent, getVersion, target } from "./agents.ts";
import { agentInUse, aliasInUse, aliasNotFound, versionInUse } from "./errors.ts";
import {
  type AgentRow,
  aliasesOf,
  changeAgent,
  deleteAgent,
  deleteAlias,
  deleteVersion,
  lockAgent,
} from "./store.ts";

type Needs = Pick<App, "db" | "clock">;

/** Maximum number of active run ids that the error lists. */
const namedMax = 10;

export async function removeAgent(app: Needs, actor: Actor, reference: string): Promise<void> {
  await whileHeld(app, actor, reference, async (tx, agent) => {
    const active = await findActiveOfAgent(tx, agent.id, namedMax);
    if (active.length > 0) throw agentInUse(active);
    await terminateMachinesOfAgent(tx, agent.id);
    await deleteAgent(tx, agent.id);
    await recordActivity(tx, actor, "agent.deleted", target(agent), agent.workspace_id);
  });
}

export async function removeVersion(
  app: Needs,
  actor: Actor,
  reference: string,
  wanted: string,
): Promise<void> {
  await whileHeld(app, actor, reference, async (tx, agent) => {
    const { version } = await getVersion(tx, agent, wanted);
    const aliases = ((await aliasesOf(tx, [agent.id])).get(agent.id) ?? [])
      .filter((alias) => alias.version === version)
      .map(({ name }) => name);
    const sessions = await countPinned(tx, agent.id, version);
    const isLatest = version === agent.latest_version;
    const { schedules, webhooks } = await triggersOf(tx, agent.id, [String(version), `v${version}`]);
    const triggers = schedules + webhooks;
    if (isLatest || aliases.length > 0 || sessions > 0 || triggers > 0)
      throw versionInUse({ aliases, sessions, triggers, isLatest });
    await deleteVersion(tx, agent.id, version);
    await changeAgent(tx, agent.id, { updated_at: app.clock.now() });
    await recordActivity(tx, actor, "agent.version_deleted", target(agent), agent.workspace_id, { version });
  });
}

/** Deletes an alias. Throws while schedules or webhooks of the agent run the alias. */
export async function removeAlias(app: Needs, actor: Actor, reference: string, name: string): Promise<void> {
  await app.db.transaction().execute(async (tx) => {
    const agent = await lockReachable(tx, actor, reference);
    const triggers = await triggersOf(tx, agent.id, [name]);
    if (triggers.schedules + triggers.webhooks > 0) throw aliasInUse(triggers);
    if (!(await deleteAlias(tx, agent.id, name))) throw aliasNotFound();
    await changeAgent(tx, agent.id, { updated_at: app.clock.now() });
    await recordActivity(tx, actor, "agent.alias_deleted", target(agent), agent.workspace_id, {
      alias: name,
    });
  });
}

/** Counts the schedules and webhooks that run one of these qualifiers. */
async function triggersOf(
  tx: Db,
  agentId: string,
  qualifiers: readonly string[],
): Promise<{ schedules: number; webhooks: number }> {
  const schedules = await countSchedules(tx, agentId, qualifiers);
  return { schedules, webhooks: await countWebhooks(tx, agentId, qualifiers) };
}

/**
 * Runs `work` in a transaction that has locked the workspace's counts and then the agent's row. An invoke locks in the
 * same order.
 */
async function whileHeld(
  app: Needs,
  actor: Actor,
  reference: string,
  work: (tx: Db, agent: AgentRow) => Promise<void>,
): Promise<void> {
  const { id, workspace_id } = await getAgent(app.db, actor, reference);
  await transactionWithRetry(app.db, async (tx) => {
    await lockCounts(tx, workspace_id);
    await work(tx, await lockReachable(tx, actor, id));
  });
}

async function lockReachable(tx: Db, actor: Actor, reference: string): Promise<AgentRow> {
  const row = await lockAgent(tx, reference, referableIds(actor, reference, "agt_"));
  if (!row) throw agentNotFound();
  return row;
}
