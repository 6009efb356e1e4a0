/** Wire format of toolsets. */
import { z } from "zod";
import { knownTools } from "./tools/tool-lists.ts";
import { HeaderName, HttpTool, Override } from "./tools/tool-schema.ts";
import type { ToolsetRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const ToolsetParams = z.strictObject({
  toolset_id: z.string().max(64).describe("Id of the toolset: `tst_…`."),
});

const Name = z
  .string()
  .regex(/^[a-z][a-z0-9_-]{0,23}$/, {
    error: "must be 1 to 24 of a-z, 0-9, - and _, and begin with a letter",
  })
  .describe(
    "Name of the toolset, unique in the workspace: 1 to 24 of a-z, 0-9, - and _, beginning with a letter. Models call its tools `{name}__{tool}`.",
  );
const authTypes = ["none", "header", "oauth"] as const;
const statuses = ["ready", "unreachable", "auth_required"] as const;

const HttpTools = z.array(HttpTool).max(200);
const Overrides = z.record(z.string().min(1).max(200), Override);
const Url = z.string().max(2048).refine(isWebAddress, {
  error: "must be an http or https URL without user name, password, query and fragment",
});
const Secret = z
  .string()
  .max(4096)
  .regex(/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/, { error: "must be printable ASCII" });

const ClientId = z
  .string()
  .regex(/^[\x21-\x7e]{1,2048}$/, { error: "must be printable ASCII without spaces" })
  .nullable()
  .describe(
    "Id of an OAuth client that you registered at the provider. Default: null, and a client is registered at sign-in.",
  );
const ClientSecret = z
  .string()
  .regex(/^[\x20-\x7e]{0,4096}$/, { error: "must be printable ASCII" })
  .describe("Secret of the OAuth client, encrypted at rest and never returned. An empty text removes it.");
const ScopeToken = z
  .string()
  .max(500)
  .regex(/^[\x21\x23-\x5b\x5d-\x7e]+$/, {
    error: "must be a scope: printable ASCII without quotes and spaces",
  });
const Scopes = z
  .union([
    z
      .string()
      .max(4096)
      .regex(/^[\x21\x23-\x5b\x5d-\x7e]+( [\x21\x23-\x5b\x5d-\x7e]+)*$/, {
        error: "must be scopes with one space between",
      }),
    z.array(ScopeToken).min(1).max(100),
  ])
  .nullable()
  .describe(
    "OAuth scopes requested at sign-in: an array, or a text separated by spaces. Default: the connector's scopes, else the server's own choice.",
  );
const PerEndUser = z
  .boolean()
  .describe(
    "True if each end user signs in. If false, the owner's connection serves all. Default for a new toolset: false.",
  );

export const ToolsetCreate = z
  .strictObject({
    name: Name,
    kind: z
      .enum(["http", "mcp"])
      .describe("Kind of toolset: `http` for requests as data, `mcp` for the tools of an MCP server."),
    url: Url.optional().describe(
      "URL before the paths of the requests, or URL of the MCP server. Required without `catalog_slug`.",
    ),
    catalog_slug: z
      .string()
      .max(64)
      .nullable()
      .optional()
      .describe(
        "Slug of a connector of the catalog, for example `github`. It sets `url` and `auth_type`, and requires the kind `mcp`. Default: none.",
      ),
    auth_header_name: HeaderName.nullable()
      .optional()
      .describe(
        "Header that carries the secret, for example `x-api-key`. Default: `Authorization: Bearer <secret>`.",
      ),
    auth_secret: Secret.nullable()
      .optional()
      .describe(
        "Secret of the calls, encrypted at rest and never returned. It is sent only to `url`. Default: none.",
      ),
    auth_type: z
      .enum(["oauth"])
      .optional()
      .describe(
        "`oauth` if people sign in instead of a stored secret. Default: `auth_secret` if given, else no authentication.",
      ),
    oauth_client_id: ClientId.optional(),
    oauth_client_secret: ClientSecret.optional(),
    oauth_scopes: Scopes.optional(),
    oauth_per_end_user: PerEndUser.optional(),
    http_tools: HttpTools.optional().describe(
      "Tools of a toolset of the kind `http`, at most 200. Required for `http`, and refused for `mcp`.",
    ),
    tool_overrides: Overrides.optional().describe(
      "Changes to single tools, by original name. Default: none.",
    ),
  })
  .meta({ id: "AgentToolsetCreate" });
export type ToolsetCreate = z.output<typeof ToolsetCreate>;

export const ToolsetUpdate = z
  .strictObject({
    url: Url.optional().describe(
      "URL of the tool server. A change of origin removes the stored secret, client and tool headers, unless the same request sends new ones.",
    ),
    auth_header_name: HeaderName.nullable()
      .optional()
      .describe("Header that carries the secret. Null for `Authorization: Bearer <secret>`."),
    auth_secret: z
      .union([z.literal(""), Secret])
      .optional()
      .describe(
        "New secret of the calls, encrypted at rest and never returned. An empty text removes the secret.",
      ),
    oauth_client_id: ClientId.optional(),
    oauth_client_secret: ClientSecret.optional(),
    oauth_scopes: Scopes.optional(),
    oauth_per_end_user: PerEndUser.optional(),
    http_tools: HttpTools.optional().describe(
      "Tools of a toolset of the kind `http`. They replace all previous tools.",
    ),
    tool_overrides: Overrides.optional().describe(
      "Changes to single tools, by original name. They replace all previous changes.",
    ),
  })
  .meta({ id: "AgentToolsetUpdate" });
export type ToolsetUpdate = z.output<typeof ToolsetUpdate>;

const toolset = {
  id: z.string().describe("Id of the toolset: `tst_…`."),
  name: z
    .string()
    .describe("Name of the toolset, unique in the workspace. Models call its tools `{name}__{tool}`."),
  kind: z
    .enum(["http", "mcp"])
    .describe("Kind of toolset: HTTP requests as data (`http`), or the tools of an MCP server (`mcp`)."),
  url: z.string().describe("URL before the paths of the requests, or URL of the MCP server."),
  auth_type: z
    .enum(authTypes)
    .describe(
      "Authentication of calls: `none`, a stored secret (`header`), or people who sign in (`oauth`).",
    ),
  auth_header_name: z
    .string()
    .nullable()
    .describe("Header that carries the secret. Null for `Authorization: Bearer <secret>`."),
  secret_hint: z
    .string()
    .nullable()
    .describe(
      "Hint of the stored secret: its last four characters, as in `…6789`, or `…` if it is short. Null without a secret.",
    ),
  catalog_slug: z
    .string()
    .nullable()
    .describe("Slug of the connector that the toolset was created from. Null if there was none."),
  oauth_client_id: z
    .string()
    .nullable()
    .describe("Id of an OAuth client that you registered. Null if a client is registered at sign-in."),
  oauth_scopes: z
    .string()
    .nullable()
    .describe("OAuth scopes requested at sign-in, separated by spaces. Null for the server's own choice."),
  oauth_per_end_user: z
    .boolean()
    .describe("True if each end user signs in. If false, the owner's connection serves all."),
  http_tools: z
    .array(
      z.looseObject({
        headers: z
          .record(z.string(), z.string())
          .optional()
          .describe("Headers with a hint instead of each value."),
      }),
    )
    .describe("Tools as they were set. Empty for a toolset of the kind `mcp`."),
  tool_overrides: z.record(z.string(), z.unknown()).describe("Changes to single tools, by original name."),
  tools: z
    .array(
      z.object({
        name: z.string().describe("Name of the tool for models, after the toolset's name and `__`."),
        original_name: z.string().describe("Name of the tool in agent configs and in `tool_overrides`."),
        description: z.string().describe("Description of the tool for the model."),
        input_schema: z.unknown().describe("JSON Schema of the arguments."),
      }),
    )
    .describe("Tools of the toolset, with `tool_overrides` applied."),
  status: z
    .enum(statuses)
    .describe(
      "Outcome of the last attempt to read the MCP server's tools. `auth_required` means that a sign-in or a valid secret is missing. Always `ready` for the kind `http`.",
    ),
  last_refreshed_at: timestamp
    .nullable()
    .describe(
      "Time when the tools were last read from the MCP server. Null until then, and for the kind `http`.",
    ),
  last_error: z
    .string()
    .nullable()
    .describe(
      "Reason why the tools could not be read, or list of tools that were left out. Null if all were read.",
    ),
  created_at: timestamp.describe("Time when the toolset was created."),
};
export const Toolset = z.object(toolset).meta({ id: "AgentToolset" });
export type Toolset = z.output<typeof Toolset>;
export const ToolsetList = z
  .object({ items: z.array(Toolset).describe("Toolsets, newest first.") })
  .meta({ id: "AgentToolsetList" });
export const toolsetReadOnlyFields = Object.keys(toolset).filter((field) => !(field in ToolsetUpdate.shape));

function isWebAddress(text: string): boolean {
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) return false;
  return [url.username, url.password, url.search, url.hash].every((part) => part === "");
}

export const Connector = z
  .object({
    slug: z.string().describe("Value for `catalog_slug`, for example `github`."),
    name: z.string().describe("Name of the product, for example `GitHub`."),
    description: z
      .string()
      .describe("Subject of the connector's tools, for example `Tasks, projects and goals.`"),
    kind: z.enum(["mcp"]).describe("Always `mcp`."),
    url: z.string().describe("URL of the vendor's MCP server."),
    auth_type: z.enum(["oauth"]).describe("Always `oauth`: people sign in."),
    oauth_scopes: z
      .string()
      .nullable()
      .describe("OAuth scopes requested at sign-in, separated by spaces. Null for the server's own choice."),
    needs_client: z
      .boolean()
      .describe(
        "True if the vendor registers no OAuth clients automatically. Then create one there and send its `oauth_client_id`.",
      ),
    docs_url: z.string().describe("URL of the vendor's documentation."),
  })
  .meta({ id: "AgentToolsetConnector" });
export type Connector = z.output<typeof Connector>;
export const Catalog = z
  .object({ items: z.array(Connector).describe("All connectors of the catalog.") })
  .meta({ id: "AgentToolsetCatalog" });

/** Converts a row to the JSON of every response. */
export function toToolset(row: ToolsetRow): Toolset {
  return {
    id: row.id,
    name: row.name,
    kind: row.kind,
    url: row.url,
    auth_type: row.auth_type,
    auth_header_name: row.auth_header_name,
    secret_hint: row.secret_hint,
    catalog_slug: row.catalog_slug,
    oauth_client_id: row.oauth_client_id,
    oauth_scopes: row.oauth_scopes,
    oauth_per_end_user: row.oauth_per_end_user,
    http_tools: row.http_tools,
    tool_overrides: row.tool_overrides,
    tools: knownTools(row).map(({ original, name, description, inputSchema }) => ({
      name,
      original_name: original,
      description,
      input_schema: inputSchema,
    })),
    status: row.status,
    last_refreshed_at: row.last_refreshed_at?.toISOString() ?? null,
    last_error: row.last_error,
    created_at: row.created_at.toISOString(),
  };
}
