/** Checks a toolset's address, tools and authentication. */
import type { ReachableWorkspace } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { AddressError, checkAddress } from "#lib/network/checked-lookup.ts";
import { invalidField } from "../errors.ts";
import { findSchemaFault } from "../json-schema.ts";
import type { ToolsetUpdate } from "./schema.ts";
import type { HttpTool } from "./tools/tool-schema.ts";

export async function requireAddress(
  app: Pick<App, "config">,
  { id }: Pick<ReachableWorkspace, "id">,
  url: string,
): Promise<void> {
  const opened = parseOpenedHosts(app.config.allowPrivateHosts);
  await checkAddress(new URL(url), opened, id).catch((error: unknown) => {
    throw error instanceof AddressError ? invalidField(["url"], error.message) : error;
  });
}

/**
 * Throws if a toolset of kind http has no tools, or if a toolset of kind mcp has some. The tools of kind mcp come from
 * the server.
 */
export function requireToolsOfKind(kind: "http" | "mcp", tools: readonly HttpTool[] | undefined): void {
  if (kind === "http" && tools === undefined) throw invalidField(["http_tools"], "is required for kind http");
  if (kind === "mcp" && tools !== undefined && tools.length > 0)
    throw invalidField(["http_tools"], "must be absent, because it is for kind http only");
}

/** Throws unless tool names are unique, schemas are usable, and each placeholder in a path has a required argument. */
export async function requireTools(
  { id }: Pick<ReachableWorkspace, "id">,
  tools: readonly HttpTool[],
): Promise<void> {
  const names = new Set<string>();
  for (const [index, { name, parameters, path }] of tools.entries()) {
    if (names.has(name))
      throw invalidField(["http_tools", index, "name"], "is used twice; give each tool its own name");
    names.add(name);
    const why =
      parameters["type"] === "object" ? await findSchemaFault(id, parameters) : "must be of type object";
    if (why !== undefined) throw invalidField(["http_tools", index, "parameters"], why);
    const required = Array.isArray(parameters["required"]) ? (parameters["required"] as unknown[]) : [];
    for (const [, place = ""] of path.matchAll(/\{([^{}]*)\}/g)) {
      if (!required.includes(place))
        throw invalidField(
          ["http_tools", index, "path"],
          `must contain only required arguments; add ${place} to \`required\` of parameters`,
        );
    }
  }
}

type AuthFields = Pick<
  ToolsetUpdate,
  | "auth_header_name"
  | "auth_secret"
  | "oauth_client_id"
  | "oauth_client_secret"
  | "oauth_scopes"
  | "oauth_per_end_user"
>;

/** Throws if a toolset has both a stored secret and a sign-in. Values that remove a field are always accepted. */
export function requireOneAuthMethod(
  isSignedInTo: boolean,
  said: { [Field in keyof AuthFields]: AuthFields[Field] | null },
) {
  if (isSignedInTo) {
    for (const field of ["auth_secret", "auth_header_name"] as const)
      if (said[field]) throw invalidField([field], "must be absent, because auth_type is oauth");
    return;
  }
  const fields = ["oauth_client_id", "oauth_client_secret", "oauth_scopes", "oauth_per_end_user"] as const;
  for (const field of fields)
    if (said[field]) throw invalidField([field], "must be absent, because it is for auth_type oauth only");
}

export function requireClient(clientId: string | null, hasSecret: boolean): void {
  if (clientId === null && hasSecret)
    throw invalidField(["oauth_client_id"], "is required with oauth_client_secret");
}

/** Removes trailing slashes of a URL that request paths follow. The URL of an MCP server stays as it is. */
export function addressOf(kind: "http" | "mcp", url: string): string {
  return kind === "http" ? url.replace(/\/+$/, "") : url;
}

/** Returns scopes in OAuth's notation, separated by spaces. */
export function scopesOf(scopes: string | readonly string[] | null): string | null {
  return scopes === null || typeof scopes === "string" ? scopes : scopes.join(" ");
}
