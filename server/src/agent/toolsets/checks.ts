/** What a toolset says must fit: its address, its tools, and how its calls are let in. */
import type { ReachableWorkspace } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { parseOpenedHosts } from "#lib/network/addresses.ts";
import { AddressError, checkAddress } from "#lib/network/checked-lookup.ts";
import { invalidField } from "../errors.ts";
import { whyNotSchema } from "../json-schema.ts";
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

/** Tools of http toolsets are said, those of a server are read. */
export function requireOwnKind(kind: "http" | "mcp", tools: readonly HttpTool[] | undefined): void {
  if (kind === "http" && tools === undefined)
    throw invalidField(["http_tools"], "is required where kind is http");
  if (kind === "mcp" && tools !== undefined && tools.length > 0)
    throw invalidField(["http_tools"], "is used where kind is http alone; leave it out");
}

/** Names are said once, schemas can be used, and each place in a path is an argument that must be there. */
export async function requireTools(
  { id }: Pick<ReachableWorkspace, "id">,
  tools: readonly HttpTool[],
): Promise<void> {
  const names = new Set<string>();
  for (const [index, { name, parameters, path }] of tools.entries()) {
    if (names.has(name)) throw invalidField(["http_tools", index, "name"], "stands there twice");
    names.add(name);
    const why =
      parameters["type"] === "object" ? await whyNotSchema(id, parameters) : "must be of type object";
    if (why !== undefined) throw invalidField(["http_tools", index, "parameters"], why);
    const required = Array.isArray(parameters["required"]) ? (parameters["required"] as unknown[]) : [];
    for (const [, place = ""] of path.matchAll(/\{([^{}]*)\}/g)) {
      if (!required.includes(place))
        throw invalidField(["http_tools", index, "path"], `{${place}} must be a required argument`);
    }
  }
}

type Said = Pick<
  ToolsetUpdate,
  | "auth_header_name"
  | "auth_secret"
  | "oauth_client_id"
  | "oauth_client_secret"
  | "oauth_scopes"
  | "oauth_per_end_user"
>;

/** Calls carry a secret, or people sign in: never both. What takes something away is always taken. */
export function requireOneWayIn(isSignedInTo: boolean, said: { [Field in keyof Said]: Said[Field] | null }) {
  if (isSignedInTo) {
    for (const field of ["auth_secret", "auth_header_name"] as const)
      if (said[field]) throw invalidField([field], "is not used where auth_type is oauth; leave it out");
    return;
  }
  const fields = ["oauth_client_id", "oauth_client_secret", "oauth_scopes", "oauth_per_end_user"] as const;
  for (const field of fields)
    if (said[field]) throw invalidField([field], "is used where auth_type is oauth alone; leave it out");
}

export function requireClient(clientId: string | null, hasSecret: boolean): void {
  if (clientId === null && hasSecret)
    throw invalidField(["oauth_client_id"], "is required where there is a client secret");
}

/** Paths of requests are put after it; a server's is the whole address. */
export function addressOf(kind: "http" | "mcp", url: string): string {
  return kind === "http" ? url.replace(/\/+$/, "") : url;
}

/** As OAuth writes them. */
export function scopesOf(scopes: string | readonly string[] | null): string | null {
  return scopes === null || typeof scopes === "string" ? scopes : scopes.join(" ");
}
