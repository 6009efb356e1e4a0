/** The wire of toolsets. */
import { z } from "zod";
import { knownTools } from "./known.ts";
import type { ToolsetRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const ToolsetParams = z.strictObject({ toolset_id: z.string().max(64) });

const Name = z
  .string()
  .regex(/^[a-z][a-z0-9_-]{0,23}$/, {
    error: "must be 1 to 24 of a-z, 0-9, - and _, and begin with a letter",
  })
  .describe("Models call its tools `{name}__{tool}`.");
const ToolName = z
  .string()
  .regex(/^[A-Za-z0-9_-]{1,38}$/, { error: "must be 1 to 38 of A-Z, a-z, 0-9, - and _" });

/** What the request itself needs, and what would let a header say where it goes. */
const ownHeaders =
  /^(host|content-length|transfer-encoding|connection|upgrade|te|trailer|idempotency-key|expect|proxy-.*)$/i;
const HeaderName = z
  .string()
  .regex(/^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$/, { error: "must be a header's name" })
  .refine((name) => !ownHeaders.test(name), { error: "is a header that is not yours to set" });
/** Printable ASCII, or a hint as in responses. */
const HeaderValue = z
  .string()
  .regex(/^(…[\x20-\x7e]{0,4}|[\x20-\x7e]{0,2000})$/, { error: "must be printable ASCII" });

export const methods = ["GET", "POST", "PUT", "PATCH", "DELETE"] as const;

export const HttpTool = z
  .strictObject({
    name: ToolName,
    description: z.string().max(4000),
    method: z.enum(methods),
    path: z
      .string()
      .max(2000)
      .regex(/^\/[^?#\s\\]*$/, { error: "must begin with / and hold no query, fragment or space" })
      .refine((path) => !path.split("/").some((part) => part === "." || part === ".."), {
        error: "must not hold . or .. as a part",
      })
      .describe("Below the toolset's `url`; `{param}` is replaced by that argument."),
    parameters: z
      .record(z.string(), z.unknown())
      .describe(
        "JSON Schema of an object: the arguments. Those not in the path go into the query or the body.",
      ),
    headers: z
      .record(HeaderName, HeaderValue)
      .optional()
      .describe(
        "Headers of each request. Values are encrypted at rest. Responses show a hint of at most four characters, such as `…6789`. Send the hint or `********` in an update to keep the stored value.",
      ),
    body: z
      .enum(["json", "form", "none"])
      .optional()
      .describe("`json` where absent, and for GET and DELETE `none`."),
  })
  .meta({ id: "AgentHttpTool" });
export type HttpTool = z.output<typeof HttpTool>;

const Override = z.strictObject({
  name: ToolName.optional(),
  description: z.string().max(4000).optional(),
  policy: z.enum(["allow", "ask", "deny"]).optional(),
});
export type ToolOverride = z.output<typeof Override>;

export const authTypes = ["none", "header", "oauth"] as const;
export const statuses = ["ready", "unreachable", "auth_required"] as const;

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
  .describe("Of a client that was registered beforehand; where there is none, one is registered at sign-in.");
const ClientSecret = z
  .string()
  .regex(/^[\x20-\x7e]{0,4096}$/, { error: "must be printable ASCII" })
  .describe("Sealed at rest, never answered. An empty one removes it.");
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
  .describe("What is asked for at sign-in; where absent, what the server asks for.");
const PerEndUser = z
  .boolean()
  .describe("Each end user signs in for themselves. Where false, the owner's connection serves all.");

export const ToolsetCreate = z
  .strictObject({
    name: Name,
    kind: z.enum(["http", "mcp"]).describe("Requests as data, or the tools of an MCP server."),
    url: Url.optional().describe("Required, except with a `catalog_slug`."),
    catalog_slug: z
      .string()
      .max(64)
      .nullable()
      .optional()
      .describe("A connector of the catalog: says `url`, and that people sign in."),
    auth_header_name: HeaderName.nullable()
      .optional()
      .describe("`Authorization: Bearer <secret>` where absent."),
    auth_secret: Secret.nullable()
      .optional()
      .describe("Sealed at rest, never answered, sent to `url` alone."),
    auth_type: z.enum(["oauth"]).optional().describe("People sign in, in place of a stored secret."),
    oauth_client_id: ClientId.optional(),
    oauth_client_secret: ClientSecret.optional(),
    oauth_scopes: Scopes.optional(),
    oauth_per_end_user: PerEndUser.optional(),
    http_tools: HttpTools.optional().describe("Required where `kind` is http, and used there alone."),
    tool_overrides: Overrides.optional(),
  })
  .meta({ id: "AgentToolsetCreate" });
export type ToolsetCreate = z.output<typeof ToolsetCreate>;

export const ToolsetUpdate = z
  .strictObject({
    url: Url.optional().describe(
      "URL of the tool server. A change of origin removes the stored secret, client and tool headers, unless the same request sends new ones.",
    ),
    auth_header_name: HeaderName.nullable().optional(),
    auth_secret: z
      .union([z.literal(""), Secret])
      .optional()
      .describe("An empty one removes it."),
    oauth_client_id: ClientId.optional(),
    oauth_client_secret: ClientSecret.optional(),
    oauth_scopes: Scopes.optional(),
    oauth_per_end_user: PerEndUser.optional(),
    http_tools: HttpTools.optional(),
    tool_overrides: Overrides.optional(),
  })
  .meta({ id: "AgentToolsetUpdate" });
export type ToolsetUpdate = z.output<typeof ToolsetUpdate>;

const toolset = {
  id: z.string(),
  name: z.string(),
  kind: z.enum(["http", "mcp"]),
  url: z.string(),
  auth_type: z.enum(authTypes),
  auth_header_name: z.string().nullable(),
  secret_hint: z.string().nullable(),
  catalog_slug: z.string().nullable(),
  oauth_client_id: z.string().nullable(),
  oauth_scopes: z.string().nullable(),
  oauth_per_end_user: z.boolean(),
  http_tools: z.array(
    z.looseObject({
      headers: z
        .record(z.string(), z.string())
        .optional()
        .describe("Headers with a hint instead of each value."),
    }),
  ),
  tool_overrides: z.record(z.string(), z.unknown()),
  tools: z.array(
    z.object({
      name: z.string().describe("As models call it, after the toolset's name and `__`."),
      original_name: z.string().describe("As configs and overrides call it."),
      description: z.string(),
      input_schema: z.unknown(),
    }),
  ),
  status: z.enum(statuses).describe("How the last try to read an MCP server's tools ended."),
  last_refreshed_at: timestamp.nullable(),
  last_error: z.string().nullable(),
  created_at: timestamp,
};
export const Toolset = z.object(toolset).meta({ id: "AgentToolset" });
export type Toolset = z.output<typeof Toolset>;
export const ToolsetList = z.object({ items: z.array(Toolset) }).meta({ id: "AgentToolsetList" });
export const toolsetReadOnlyFields = Object.keys(toolset).filter((field) => !(field in ToolsetUpdate.shape));

function isWebAddress(text: string): boolean {
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) return false;
  return [url.username, url.password, url.search, url.hash].every((part) => part === "");
}

export const Connector = z
  .object({
    slug: z.string(),
    name: z.string(),
    description: z.string(),
    kind: z.enum(["mcp"]),
    url: z.string(),
    auth_type: z.enum(["oauth"]),
    oauth_scopes: z.string().nullable(),
    needs_client: z
      .boolean()
      .describe("The vendor registers no clients by itself: make one there, and give its `oauth_client_id`."),
    docs_url: z.string(),
  })
  .meta({ id: "AgentToolsetConnector" });
export type Connector = z.output<typeof Connector>;
export const Catalog = z.object({ items: z.array(Connector) }).meta({ id: "AgentToolsetCatalog" });

/** The only way from a row to JSON. */
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
