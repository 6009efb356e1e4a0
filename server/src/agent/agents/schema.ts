/** The wire of agents, versions and aliases. */
import { z } from "zod";
import { pageQuery } from "../cursor.ts";
import { AgentConfig } from "./config.ts";
import type { AgentRow, Alias as AliasRow, VersionRow } from "./store.ts";

const timestamp = z.iso.datetime();
const AgentName = z.string().min(1).max(63);
const Description = z.string().max(1000).nullable();

/** An agent's name or id. */
export const AgentReference = z.string().max(64).describe("The agent's name, or its id: `agt_…`.");
export const AgentParams = z.strictObject({ agent: AgentReference });
export const VersionParams = z.strictObject({
  agent: AgentReference,
  version: z.string().max(64).describe("A number (`3` or `v3`), an alias, or `latest`."),
});
export const AliasParams = z.strictObject({ agent: AgentReference, name: z.string().max(64) });

export const AgentCreate = z
  .strictObject({
    name: AgentName.describe("a-z, 0-9, - and _; unique in the account."),
    description: Description.optional(),
    config: AgentConfig,
  })
  .meta({ id: "AgentCreate" });
export type AgentCreate = z.output<typeof AgentCreate>;

export const AgentUpdate = z
  .strictObject({
    name: AgentName.optional(),
    description: Description.optional(),
    paused: z.boolean().optional().describe("While it is, every invoke is refused with `agent_paused`."),
    archived: z
      .boolean()
      .optional()
      .describe(
        "True archives the agent: lists leave it out, and every invoke is refused with `agent_archived`. It keeps its name.",
      ),
  })
  .meta({ id: "AgentUpdate" });
export type AgentUpdate = z.output<typeof AgentUpdate>;

const alias = { name: z.string(), version: z.int() };
export const Alias = z.object(alias).meta({ id: "AgentAlias" });

const agent = {
  id: z.string(),
  name: z.string(),
  description: z.string().nullable(),
  paused: z.boolean(),
  archived: z.boolean(),
  archived_at: timestamp.nullable(),
  worker_id: z.guid().describe("Identity (UUID) under which the agent acts on the platform API."),
  aliases: z.array(Alias).describe("Its endpoints: what an invoke may ask for, and the version it gets."),
  latest_version: z.int(),
  created_at: timestamp,
  updated_at: timestamp,
};
export const Agent = z.object(agent).meta({ id: "Agent" });
export type Agent = z.output<typeof Agent>;
export const AgentList = z
  .object({
    items: z.array(Agent),
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "AgentList" });
export type AgentList = z.output<typeof AgentList>;

export const AgentQuery = z.strictObject({
  name: z.string().min(1).max(63).optional().describe("Text that the agent's name contains."),
  paused: z.stringbool({ truthy: ["true"], falsy: ["false"] }).optional(),
  archived: z
    .enum(["false", "true", "all"])
    .default("false")
    .describe("`false` lists active agents, `true` archived ones, `all` both."),
  ...pageQuery,
});
export type AgentQuery = z.output<typeof AgentQuery>;

/** Fields of the record that a PATCH accepts and ignores. */
export const agentReadOnlyFields = Object.keys(agent).filter((field) => !(field in AgentUpdate.shape));

const AliasName = z.string().min(1).max(64);

export const VersionCreate = z
  .strictObject({
    config: AgentConfig,
    notes: z.string().max(5000).nullable().optional(),
    promote: z.array(AliasName).max(20).optional().describe("Aliases that point at it from then on."),
  })
  .meta({ id: "AgentVersionCreate" });
export type VersionCreate = z.output<typeof VersionCreate>;

const versionSummary = {
  version: z.int(),
  notes: z.string().nullable(),
  aliases: z.array(z.string()),
  created_at: timestamp,
  created_by: z.object({ kind: z.string(), id: z.string(), label: z.string() }),
};
export const VersionSummary = z.object(versionSummary).meta({ id: "AgentVersionSummary" });
export type VersionSummary = z.output<typeof VersionSummary>;
export const VersionList = z.object({ items: z.array(VersionSummary) }).meta({ id: "AgentVersionList" });

export const Version = z
  .object({
    ...versionSummary,
    config: z.unknown().describe("As AgentConfig, with every default filled in."),
  })
  .meta({ id: "AgentVersion" });
export type Version = z.output<typeof Version>;

export const AliasPut = z
  .strictObject({
    version: z
      .union([z.int().min(1), z.string().min(1).max(64)])
      .describe("A number (`3` or `v3`), another alias, or `latest`."),
  })
  .meta({ id: "AgentAliasPut" });

export const PauseAllBody = z.strictObject({ paused: z.boolean() }).meta({ id: "AgentsPauseAll" });
export const PauseAll = z
  .object({ paused: z.boolean(), paused_at: timestamp.nullable() })
  .meta({ id: "AgentsPaused" });
export type PauseAll = z.output<typeof PauseAll>;

/** The only way from a row to JSON. */
export function toAgent(row: AgentRow, aliases: readonly AliasRow[]): Agent {
  return {
    id: row.id,
    name: row.name,
    description: row.description,
    paused: row.paused,
    archived: row.archived_at !== null,
    archived_at: row.archived_at?.toISOString() ?? null,
    worker_id: row.worker_id,
    aliases: aliases.map(({ name, version }) => ({ name, version })),
    latest_version: row.latest_version,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

export function toVersionSummary(
  row: Omit<VersionRow, "config">,
  aliases: readonly AliasRow[],
): VersionSummary {
  return {
    version: row.version,
    notes: row.notes,
    aliases: aliases.filter(({ version }) => version === row.version).map(({ name }) => name),
    created_at: row.created_at.toISOString(),
    created_by: row.created_by,
  };
}

export function toVersion(row: VersionRow, aliases: readonly AliasRow[]): Version {
  return { ...toVersionSummary(row, aliases), config: row.config };
}
