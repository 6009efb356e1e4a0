/**
 * Agents: a name, its versions, and the aliases that point at versions. This folder owns the configuration of agents.
 * The folder promises:
 * - A version never changes, and its publication is atomic.
 * - Everything that a version refers to exists when the version is published, and when an alias is pointed at it.
 * - An alias moves atomically. A run resolves its alias once, and keeps the resolved version.
 */
import type { Actor, ReachableWorkspace } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { referableIds, requireNotSuspended, workspaceIds } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { pageOf, positionOf } from "../cursor.ts";
import { agentNotFound, invalidField, versionNotFound } from "../errors.ts";
import { nameTaken } from "./errors.ts";
import { parseVersion, findNameFault } from "./names.ts";
import {
  type Agent,
  type AgentList,
  type AgentQuery,
  type AgentUpdate,
  toAgent,
  toVersion,
  toVersionSummary,
  type Version,
  type VersionSummary,
} from "./schema.ts";
import {
  type AgentRow,
  aliasesOf,
  changeAgent,
  findAgent,
  findVersion,
  isNameTaken,
  listAgents,
  listVersions,
  lockAgent,
  type VersionRow,
} from "./store.ts";

type Needs = Pick<App, "db" | "clock">;

/** Row of an agent, for other folders. */
export type AgentRecord = AgentRow;

export async function list(
  app: Pick<App, "db" | "secrets">,
  actor: Actor,
  query: AgentQuery,
): Promise<AgentList> {
  const { limit, cursor, name, paused, archived } = query;
  const list = `agents:${JSON.stringify([name, paused, archived])}`;
  const found = await listAgents(app.db, workspaceIds(actor), {
    name,
    paused,
    archived: archived === "all" ? undefined : archived === "true",
    before: positionOf(app, actor, list, cursor),
    limit: limit + 1,
  });
  const { page: rows, next_cursor } = pageOf(app, actor, list, found, limit);
  const aliases = await aliasesOf(
    app.db,
    rows.map(({ id }) => id),
  );
  return { items: rows.map((row) => toAgent(row, aliases.get(row.id) ?? [])), next_cursor };
}

export async function get(app: Needs, actor: Actor, reference: string): Promise<Agent> {
  return render(app.db, await getAgent(app.db, actor, reference));
}

/** Renames, describes, pauses or archives an agent. Only a new version changes the agent's behavior. */
export async function update(
  app: Needs,
  actor: Actor,
  reference: string,
  input: AgentUpdate,
): Promise<Agent> {
  return app.db.transaction().execute(async (tx) => {
    const row = await lockWritableAgent(tx, actor, reference);
    if (input.name !== undefined && input.name !== row.name) {
      requireName(input.name);
      if (await isNameTaken(tx, row.workspace_id, input.name)) throw nameTaken(input.name);
    }
    const now = app.clock.now();
    const changed = await changeAgent(tx, row.id, {
      updated_at: now,
      ...(input.archived === undefined
        ? {}
        : { archived_at: input.archived ? (row.archived_at ?? now) : null }),
      ...(input.name === undefined ? {} : { name: input.name }),
      ...(input.description === undefined ? {} : { description: input.description }),
      ...(input.paused === undefined ? {} : { paused: input.paused }),
    });
    await recordActivity(tx, actor, deedOf(row, input), target(changed), row.workspace_id, {
      fields: Object.keys(input),
    });
    return render(tx, changed);
  });
}

export async function versions(
  app: Needs,
  actor: Actor,
  reference: string,
): Promise<{ items: VersionSummary[] }> {
  const agent = await getAgent(app.db, actor, reference);
  const [rows, aliases] = await Promise.all([listVersions(app.db, agent.id), aliasesOf(app.db, [agent.id])]);
  return { items: rows.map((row) => toVersionSummary(row, aliases.get(agent.id) ?? [])) };
}

export async function version(app: Needs, actor: Actor, reference: string, wanted: string): Promise<Version> {
  const agent = await getAgent(app.db, actor, reference);
  return renderVersion(app.db, await getVersion(app.db, agent, wanted));
}

// ---- shared parts of the operations in this folder

export async function getAgent(db: Db, actor: Actor, reference: string): Promise<AgentRow> {
  const row = await findAgent(db, reference, referableIds(actor, reference, "agt_"));
  if (!row) throw agentNotFound();
  return row;
}

/**
 * Returns a version of the agent. `wanted` is `3`, `v3`, an alias or `latest`. Throws if the version does not exist.
 */
export async function getVersion(
  db: Db,
  agent: Pick<AgentRow, "id" | "latest_version">,
  wanted: string,
): Promise<VersionRow> {
  const reference = parseVersion(wanted);
  const row = reference && (await findVersion(db, agent, reference));
  if (!row) throw versionNotFound();
  return row;
}

/** Locks the agent's row until the transaction ends, and returns the row. Throws in a suspended account. */
export async function lockWritableAgent(tx: Db, actor: Actor, reference: string): Promise<AgentRow> {
  const row = await lockAgent(tx, reference, referableIds(actor, reference, "agt_"));
  if (!row) throw agentNotFound();
  requireNotSuspended(workspaceOf(actor, row));
  return row;
}

export function workspaceOf(actor: Actor, { workspace_id }: { workspace_id: string }): ReachableWorkspace {
  const workspace = actor.workspaces.find(({ id }) => id === workspace_id);
  if (!workspace) throw agentNotFound();
  return workspace;
}

export function requireName(name: string): void {
  const why = findNameFault(name);
  if (why !== undefined) throw invalidField(["name"], why);
}

export async function render(db: Db, row: AgentRow): Promise<Agent> {
  return toAgent(row, (await aliasesOf(db, [row.id])).get(row.id) ?? []);
}

export async function renderVersion(db: Db, row: VersionRow): Promise<Version> {
  return toVersion(row, (await aliasesOf(db, [row.agent_id])).get(row.agent_id) ?? []);
}

export function target({ id, name }: AgentRow): { kind: string; id: string; label: string } {
  return { kind: "agent", id, label: name };
}

function deedOf(row: AgentRow, { paused, archived }: AgentUpdate): string {
  if (archived !== undefined && archived !== (row.archived_at !== null))
    return archived ? "agent.archived" : "agent.unarchived";
  if (paused === undefined || paused === row.paused) return "agent.updated";
  return paused ? "agent.paused" : "agent.unpaused";
}
