/** All SQL of agents, versions and aliases. Functions for callers take the reachable workspaces as an argument. */
import { type RawBuilder, type Selectable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { Position } from "../cursor.ts";
import type { VersionReference } from "./names.ts";
import type { AgentsTable, AgentVersionsTable } from "./tables.ts";

export type AgentRow = Selectable<AgentsTable>;
export type VersionRow = Selectable<AgentVersionsTable>;

export interface Alias {
  name: string;
  version: number;
}

const among = (workspaceIds: readonly string[]) => sql<string>`any(${sql.val([...workspaceIds])}::uuid[])`;

/** Counts the workspace's agents, and blocks other creations in the workspace until the transaction ends. */
export async function lockAndCountAgents(tx: Db, workspaceId: string): Promise<number> {
  await sql`select pg_advisory_xact_lock(hashtextextended(${workspaceId}, 40))`.execute(tx);
  const { count } = await tx
    .selectFrom("agents")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Inserts an agent and returns its row. Returns undefined if the name is taken. */
export function insertAgent(
  tx: Db,
  agent: Pick<AgentRow, "id" | "workspace_id" | "name" | "description" | "latest_version" | "created_at">,
): Promise<AgentRow | undefined> {
  return tx
    .insertInto("agents")
    .values({ ...agent, updated_at: agent.created_at })
    .onConflict((conflict) => conflict.columns(["workspace_id", "name"]).doNothing())
    .returningAll()
    .executeTakeFirst();
}

/** Selects an agent by its id or its name. The name is unique in a workspace: see `referableIds`. */
const byReference = (db: Db, reference: string, workspaceIds: readonly string[]) =>
  db
    .selectFrom("agents")
    .selectAll()
    .where(reference.startsWith("agt_") ? "id" : "name", "=", reference)
    .where("workspace_id", "=", among(workspaceIds));

export function findAgent(
  db: Db,
  reference: string,
  workspaceIds: readonly string[],
): Promise<AgentRow | undefined> {
  return byReference(db, reference, workspaceIds).executeTakeFirst();
}

/** Locks the agent's row until the transaction ends, and returns the row. */
export function lockAgent(
  tx: Db,
  reference: string,
  workspaceIds: readonly string[],
): Promise<AgentRow | undefined> {
  return byReference(tx, reference, workspaceIds).forUpdate().executeTakeFirst();
}

/** Lists agents, newest first. */
export function listAgents(
  db: Db,
  workspaceIds: readonly string[],
  wanted: {
    archived?: boolean | undefined;
    paused?: boolean | undefined;
    /** Text that the name must contain. */
    name?: string | undefined;
    before?: Position | undefined;
    limit: number;
  },
): Promise<(AgentRow & { created_at_text: string })[]> {
  const { archived, paused, name, before } = wanted;
  let query = db
    .selectFrom("agents")
    .selectAll()
    .select(sql<string>`created_at::text`.as("created_at_text"))
    .where("workspace_id", "=", among(workspaceIds));
  if (archived !== undefined) query = query.where("archived_at", archived ? "is not" : "is", null);
  if (paused !== undefined) query = query.where("paused", "=", paused);
  if (name !== undefined) query = query.where(sql<boolean>`strpos(name, ${name}) > 0`);
  if (before !== undefined)
    query = query.where(sql<boolean>`(created_at, id) < (${before.createdAt}::timestamptz, ${before.id})`);
  return query.orderBy("created_at", "desc").orderBy("id", "desc").limit(wanted.limit).execute();
}

/** Counts the agents that are not archived. */
export async function countAgents(db: Db, workspaceId: string): Promise<number> {
  const { count } = await db
    .selectFrom("agents")
    .select((eb) => eb.fn.countAll<number>().as("count"))
    .where("workspace_id", "=", workspaceId)
    .where("archived_at", "is", null)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Deletes an agent. Foreign keys delete its versions, aliases, sessions, runs, memory, schedules and webhooks. */
export async function deleteAgent(tx: Db, id: string): Promise<void> {
  await tx.deleteFrom("agents").where("id", "=", id).execute();
}

export async function isNameTaken(tx: Db, workspaceId: string, name: string): Promise<boolean> {
  const row = await tx
    .selectFrom("agents")
    .select("id")
    .where("workspace_id", "=", workspaceId)
    .where("name", "=", name)
    .executeTakeFirst();
  return row !== undefined;
}

export function changeAgent(
  tx: Db,
  id: string,
  change: Partial<Pick<AgentRow, "name" | "description" | "paused" | "archived_at" | "latest_version">> & {
    updated_at: Date;
  },
): Promise<AgentRow> {
  return tx.updateTable("agents").set(change).where("id", "=", id).returningAll().executeTakeFirstOrThrow();
}

/** An agent and the requested version for an invoke. The version is null if the agent has no such version. */
export type AgentForInvoke = Pick<
  AgentRow,
  "id" | "workspace_id" | "name" | "latest_version" | "paused" | "archived_at"
> & {
  is_all_paused: boolean;
  version: number | null;
  config: unknown;
  /** True if the credential of the version's model exists. */
  has_credential: boolean;
};

export async function findAgentForInvoke(
  db: Db,
  reference: string,
  workspaceIds: readonly string[],
  wanted: VersionReference | undefined,
): Promise<AgentForInvoke | undefined> {
  const { rows } = await sql<AgentForInvoke>`
    select a.id, a.workspace_id, a.name, a.latest_version, a.paused, a.archived_at, v.version, v.config,
      exists (select from agent_pauses as p where p.workspace_id = a.workspace_id) as is_all_paused,
      (v.config #>> '{model,provider}' = 'echo' or exists (select from model_credentials as c
        where c.workspace_id = a.workspace_id and c.id = v.config #>> '{model,credential_id}')) as has_credential
    from (${byReference(db, reference, workspaceIds)}) as a
    left join agent_versions as v on v.agent_id = a.id and v.version = ${numberOf(wanted)}`.execute(db);
  return rows[0];
}

function numberOf(wanted: VersionReference | undefined): RawBuilder<unknown> {
  if (wanted === undefined) return sql`null`;
  if (wanted === "latest") return sql`a.latest_version`;
  return "version" in wanted
    ? sql`${wanted.version}`
    : sql`(select al.version from agent_aliases as al where al.agent_id = a.id and al.name = ${wanted.alias})`;
}

// ---- versions

export function insertVersion(
  tx: Db,
  version: Pick<VersionRow, "agent_id" | "version" | "notes" | "created_at"> & {
    config: string;
    created_by: string;
  },
): Promise<VersionRow> {
  return tx.insertInto("agent_versions").values(version).returningAll().executeTakeFirstOrThrow();
}

export function findVersion(
  db: Db,
  agent: Pick<AgentRow, "id" | "latest_version">,
  reference: VersionReference,
): Promise<VersionRow | undefined> {
  const all = db
    .selectFrom("agent_versions")
    .selectAll("agent_versions")
    .where("agent_versions.agent_id", "=", agent.id);
  if (reference === "latest") return all.where("version", "=", agent.latest_version).executeTakeFirst();
  if ("version" in reference) return all.where("version", "=", reference.version).executeTakeFirst();
  return all
    .innerJoin("agent_aliases as a", (join) =>
      join
        .onRef("a.agent_id", "=", "agent_versions.agent_id")
        .onRef("a.version", "=", "agent_versions.version"),
    )
    .where("a.name", "=", reference.alias)
    .executeTakeFirst();
}

export async function deleteVersion(tx: Db, agentId: string, version: number): Promise<void> {
  await tx
    .deleteFrom("agent_versions")
    .where("agent_id", "=", agentId)
    .where("version", "=", version)
    .execute();
}

/** Versions without their configs, newest first. */
export function listVersions(db: Db, agentId: string): Promise<Omit<VersionRow, "config">[]> {
  return db
    .selectFrom("agent_versions")
    .select(["agent_id", "version", "notes", "created_by", "created_at"])
    .where("agent_id", "=", agentId)
    .orderBy("version", "desc")
    .execute();
}

// ---- aliases

/** Returns the aliases of several agents by agent id, ordered by name. */
export async function aliasesOf(db: Db, agentIds: readonly string[]): Promise<Map<string, Alias[]>> {
  const rows = await db
    .selectFrom("agent_aliases")
    .select(["agent_id", "name", "version"])
    .where("agent_id", "=", sql<string>`any(${sql.val([...agentIds])}::text[])`)
    .orderBy("name")
    .execute();
  return Map.groupBy(rows, ({ agent_id }) => agent_id);
}

export async function pointAlias(
  tx: Db,
  alias: { agent_id: string; name: string; version: number; updated_at: Date },
): Promise<void> {
  const { version, updated_at } = alias;
  await tx
    .insertInto("agent_aliases")
    .values(alias)
    .onConflict((conflict) => conflict.columns(["agent_id", "name"]).doUpdateSet({ version, updated_at }))
    .execute();
}

/** Deletes an alias. Returns false if the alias does not exist. */
export async function deleteAlias(tx: Db, agentId: string, name: string): Promise<boolean> {
  const deleted = await tx
    .deleteFrom("agent_aliases")
    .where("agent_id", "=", agentId)
    .where("name", "=", name)
    .returning("name")
    .executeTakeFirst();
  return deleted !== undefined;
}

// ---- pause of all agents of a workspace

export async function findPause(db: Db, workspaceId: string): Promise<Date | undefined> {
  const row = await db
    .selectFrom("agent_pauses")
    .select("paused_at")
    .where("workspace_id", "=", workspaceId)
    .executeTakeFirst();
  return row?.paused_at;
}

export async function insertPause(tx: Db, workspaceId: string, at: Date): Promise<void> {
  await tx
    .insertInto("agent_pauses")
    .values({ workspace_id: workspaceId, paused_at: at })
    .onConflict((conflict) => conflict.column("workspace_id").doNothing())
    .execute();
}

export async function deletePause(tx: Db, workspaceId: string): Promise<void> {
  await tx.deleteFrom("agent_pauses").where("workspace_id", "=", workspaceId).execute();
}

/** Returns the configs of all versions that an alias points at. */
export function servedConfigs(db: Db, workspaceId: string): Promise<{ name: string; config: unknown }[]> {
  return db
    .selectFrom("agents")
    .innerJoin("agent_aliases as a", "a.agent_id", "agents.id")
    .innerJoin("agent_versions as v", (join) =>
      join.onRef("v.agent_id", "=", "a.agent_id").onRef("v.version", "=", "a.version"),
    )
    .select(["agents.name", "v.config"])
    .where("agents.workspace_id", "=", workspaceId)
    .execute();
}

/** Returns the agent as an actor for its own actions, or undefined if the agent was deleted. */
export function workerOf(
  db: Db,
  agentId: string,
): Promise<Pick<AgentRow, "workspace_id" | "worker_id" | "name"> | undefined> {
  return db
    .selectFrom("agents")
    .select(["workspace_id", "worker_id", "name"])
    .where("id", "=", agentId)
    .executeTakeFirst();
}

/** Returns the toolsets of all versions of an agent, with or without an alias. */
export async function namedToolsets(db: Db, agentId: string): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select distinct use ->> 'toolset_id' as id
    from agent_versions, json_array_elements(config -> 'toolsets') as use
    where agent_id = ${agentId}`.execute(db);
  return rows.map(({ id }) => id);
}
