/** The wire of toolsets. */
import { z } from "zod";
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
const HeaderValue = z.string().regex(/^[\x20-\x7e]{0,2000}$/, { error: "must be printable ASCII" });

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
    headers: z.record(HeaderName, HeaderValue).optional(),
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
  policy: z.enum(["allow", "deny"]).optional(),
});
export type ToolOverride = z.output<typeof Override>;

const HttpTools = z.array(HttpTool).max(200);
const Overrides = z.record(z.string().min(1).max(200), Override);
const Url = z.string().max(2048).refine(isWebAddress, {
  error: "must be an http or https URL without user name, password, query and fragment",
});
const Secret = z
  .string()
  .max(4096)
  .regex(/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/, { error: "must be printable ASCII" });

export const ToolsetCreate = z
  .strictObject({
    name: Name,
    kind: z.enum(["http"]),
    url: Url,
    auth_header_name: HeaderName.nullable()
      .optional()
      .describe("`Authorization: Bearer <secret>` where absent."),
    auth_secret: Secret.nullable()
      .optional()
      .describe("Sealed at rest, never answered, sent to `url` alone."),
    http_tools: HttpTools,
    tool_overrides: Overrides.optional(),
  })
  .meta({ id: "AgentToolsetCreate" });
export type ToolsetCreate = z.output<typeof ToolsetCreate>;

export const ToolsetUpdate = z
  .strictObject({
    url: Url.optional().describe(
      "At another origin the stored secret is forgotten, unless it is sent again.",
    ),
    auth_header_name: HeaderName.nullable().optional(),
    auth_secret: z
      .union([z.literal(""), Secret])
      .optional()
      .describe("An empty one removes it."),
    http_tools: HttpTools.optional(),
    tool_overrides: Overrides.optional(),
  })
  .meta({ id: "AgentToolsetUpdate" });
export type ToolsetUpdate = z.output<typeof ToolsetUpdate>;

const toolset = {
  id: z.string(),
  name: z.string(),
  kind: z.enum(["http"]),
  url: z.string(),
  auth_header_name: z.string().nullable(),
  secret_hint: z.string().nullable(),
  http_tools: z.array(z.unknown()),
  tool_overrides: z.record(z.string(), z.unknown()),
  tools: z.array(z.object({ name: z.string(), description: z.string(), input_schema: z.unknown() })),
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

/** The only way from a row to JSON. */
export function toToolset(row: ToolsetRow): Toolset {
  return {
    id: row.id,
    name: row.name,
    kind: row.kind,
    url: row.url,
    auth_header_name: row.auth_header_name,
    secret_hint: row.secret_hint,
    http_tools: row.http_tools,
    tool_overrides: row.tool_overrides,
    tools: row.http_tools.map(({ name, description, parameters }) => ({
      name: row.tool_overrides[name]?.name ?? name,
      description: row.tool_overrides[name]?.description ?? description,
      input_schema: parameters,
    })),
    created_at: row.created_at.toISOString(),
  };
}
