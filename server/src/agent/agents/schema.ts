/** Wire format of agents, versions and aliases. */
import { z } from "zod";
import { pageQuery } from "../cursor.ts";
import { AgentConfig } from "./config.ts";
import type { AgentRow, Alias as AliasRow, VersionRow } from "./store.ts";

const timestamp = z.iso.datetime();
const AgentName = z.string().min(1).max(63);
const Description = z
  .string()
  .max(1000)
  .nullable()
  .describe("Text for people, at most 1,000 characters. The model does not get it. Null for none.");

/** An agent's name or id. */
export const AgentReference = z.string().max(64).describe("Name or id (`agt_…`) of the agent.");
export const AgentParams = z.strictObject({ agent: AgentReference });
export const VersionParams = z.strictObject({
  agent: AgentReference,
  version: z.string().max(64).describe("Version: a number (`3` or `v3`), an alias, or `latest`."),
});
export const AliasParams = z.strictObject({
  agent: AgentReference,
  name: z
    .string()
    .max(64)
    .describe(
      "Name of the alias, for example `prod`: a-z, 0-9, - and _, beginning with a letter. `latest` and names like `v3` are reserved.",
    ),
});

export const AgentCreate = z
  .strictObject({
    name: AgentName.describe("Name of the agent: a-z, 0-9, - and _; unique in the workspace."),
    description: Description.optional(),
    config: AgentConfig,
  })
  .meta({ id: "AgentCreate" });
export type AgentCreate = z.output<typeof AgentCreate>;

export const AgentUpdate = z
  .strictObject({
    name: AgentName.optional().describe("New name of the agent: a-z, 0-9, - and _; unique in the workspace."),
    description: Description.optional(),
    paused: z
      .boolean()
      .optional()
      .describe(
        "True pauses the agent: every invoke is refused with `agent_paused`. False lifts this pause.",
      ),
    archived: z
      .boolean()
      .optional()
      .describe(
        "True archives the agent: lists leave it out, and every invoke is refused with `agent_archived`. It keeps its name.",
      ),
  })
  .meta({ id: "AgentUpdate" });
export type AgentUpdate = z.output<typeof AgentUpdate>;

const alias = {
  name: z.string().describe("Name of the alias, for example `prod`."),
  version: z.int().describe("Number of the version that the alias points at."),
};
export const Alias = z.object(alias).meta({ id: "AgentAlias" });

const agent = {
  id: z.string().describe("Id of the agent: `agt_…`."),
  name: z
    .string()
    .describe("Name of the agent, unique in the workspace. Paths accept it in place of the id."),
  description: z.string().nullable().describe("Text for people. Null if there is none."),
  paused: z
    .boolean()
    .describe("True while the agent is paused: every invoke is refused with `agent_paused`."),
  archived: z
    .boolean()
    .describe("True for an archived agent: every invoke is refused with `agent_archived`."),
  archived_at: timestamp.nullable().describe("Time when the agent was archived. Null unless it is archived."),
  worker_id: z.guid().describe("Identity (UUID) under which the agent acts on the platform API."),
  aliases: z
    .array(Alias)
    .describe("Aliases of the agent, each with its version. An invoke selects one with `qualifier`."),
  latest_version: z.int().describe("Number of the last published version, from 1 on."),
  created_at: timestamp.describe("Time when the agent was created."),
  updated_at: timestamp.describe("Time of the last change, including a published version or a moved alias."),
};
export const Agent = z.object(agent).meta({ id: "Agent" });
export type Agent = z.output<typeof Agent>;
export const AgentList = z
  .object({
    items: z.array(Agent).describe("Agents of this page, newest first."),
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "AgentList" });
export type AgentList = z.output<typeof AgentList>;

export const AgentQuery = z.strictObject({
  name: z.string().min(1).max(63).optional().describe("Text that the agent's name contains."),
  paused: z
    .stringbool({ truthy: ["true"], falsy: ["false"] })
    .optional()
    .describe("`true` lists paused agents, `false` the others. Default: both."),
  archived: z
    .enum(["false", "true", "all"])
    .default("false")
    .describe("`false` lists active agents, `true` archived ones, `all` both. Default `false`."),
  ...pageQuery,
});
export type AgentQuery = z.output<typeof AgentQuery>;

/** Fields of the record that a PATCH accepts and ignores. */
export const agentReadOnlyFields = Object.keys(agent).filter((field) => !(field in AgentUpdate.shape));

const AliasName = z.string().min(1).max(64);

export const VersionCreate = z
  .strictObject({
    config: AgentConfig,
    notes: z
      .string()
      .max(5000)
      .nullable()
      .optional()
      .describe("Release notes for people, at most 5,000 characters. Default: none."),
    promote: z
      .array(AliasName)
      .max(20)
      .optional()
      .describe("Aliases to point at the new version, at most 20; missing ones are created. Default: none."),
  })
  .meta({ id: "AgentVersionCreate" });
export type VersionCreate = z.output<typeof VersionCreate>;

const versionSummary = {
  version: z.int().describe("Number of the version, from 1 on. Numbers are not used again."),
  notes: z.string().nullable().describe("Release notes. Null if there are none."),
  aliases: z
    .array(z.string())
    .describe("Names of the aliases that point at the version, for example `prod`."),
  created_at: timestamp.describe("Time when the version was published."),
  created_by: z
    .object({
      kind: z.string().describe("Kind of the actor, for example `user` or `api_token`."),
      id: z.string().describe("Id of the user or token."),
      label: z.string().describe("Display name of the actor at that time: a user's email or a token's name."),
    })
    .describe("Actor that published the version."),
};
export const VersionSummary = z.object(versionSummary).meta({ id: "AgentVersionSummary" });
export type VersionSummary = z.output<typeof VersionSummary>;
export const VersionList = z
  .object({ items: z.array(VersionSummary).describe("All versions, newest first.") })
  .meta({ id: "AgentVersionList" });

export const Version = z
  .object({
    ...versionSummary,
    config: z.unknown().describe("Config of the version: an AgentConfig with every default filled in."),
  })
  .meta({ id: "AgentVersion" });
export type Version = z.output<typeof Version>;

export const AliasPut = z
  .strictObject({
    version: z
      .union([z.int().min(1), z.string().min(1).max(64)])
      .describe("Version to point at: a number (`3` or `v3`), another alias, or `latest`."),
  })
  .meta({ id: "AgentAliasPut" });

export const PauseAllBody = z
  .strictObject({
    paused: z
      .boolean()
      .describe(
        "True pauses all agents of the workspace, false lifts this pause. The `paused` field of each agent stays as it is.",
      ),
  })
  .meta({ id: "AgentsPauseAll" });
export const PauseAll = z
  .object({
    paused: z.boolean().describe("True while all agents of the workspace are paused."),
    paused_at: timestamp.nullable().describe("Time when this pause began. Null if there is none."),
  })
  .meta({ id: "AgentsPaused" });
export type PauseAll = z.output<typeof PauseAll>;

/** Converts a row and its aliases to the JSON of every response. */
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
