/**
 * Creates a toolset. A toolset of an MCP server is created even if its tools cannot be read; its status contains the
 * cause.
 */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace, requireNotSuspended } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { newId } from "#lib/ids.ts";
import { applyConnector } from "./tools/catalog.ts";
import {
  addressOf,
  requireAddress,
  requireClient,
  requireOneAuthMethod,
  requireToolsOfKind,
  requireTools,
  scopesOf,
} from "./checks.ts";
import { toolsetLimitReached, toolsetNameTaken } from "./errors.ts";
import { toolColumns } from "./calls/headers.ts";
import { readTools } from "./tools/read-tools.ts";
import { type Toolset, type ToolsetCreate, toToolset } from "./schema.ts";
import { clientSecretColumns, secretColumns } from "./calls/secrets.ts";
import { insertToolset, lockAndCount } from "./store.ts";
import { target } from "./toolsets.ts";

const toolsetsMax = 100;

export async function create(app: App, actor: Actor, body: ToolsetCreate): Promise<Toolset> {
  const workspace = requireNotSuspended(homeWorkspace(actor));
  const input = applyConnector(body);
  const isSignedInTo = input.auth_type === "oauth";
  requireToolsOfKind(input.kind, input.http_tools);
  requireOneAuthMethod(isSignedInTo, input);
  requireClient(input.oauth_client_id ?? null, Boolean(input.oauth_client_secret));
  await requireAddress(app, workspace, input.url);
  await requireTools(workspace, input.http_tools ?? []);
  const id = newId("tst_");
  const row = await app.db.transaction().execute(async (tx) => {
    if ((await lockAndCount(tx, workspace.id)) >= toolsetsMax) throw toolsetLimitReached(toolsetsMax);
    const made = await insertToolset(tx, {
      id,
      workspace_id: workspace.id,
      name: input.name,
      kind: input.kind,
      url: addressOf(input.kind, input.url),
      auth_header_name: input.auth_header_name ?? null,
      ...secretColumns(app, id, input.auth_secret ?? ""),
      ...toolColumns(app, id, input.http_tools ?? []),
      tool_overrides: JSON.stringify(input.tool_overrides ?? {}),
      auth_type: isSignedInTo ? "oauth" : input.auth_secret ? "header" : "none",
      oauth_client_id: input.oauth_client_id ?? null,
      ...clientSecretColumns(app, id, input.oauth_client_secret ?? ""),
      oauth_scopes: scopesOf(input.oauth_scopes ?? null),
      oauth_per_end_user: input.oauth_per_end_user ?? false,
      catalog_slug: input.catalog_slug ?? null,
      ...(input.kind === "http" ? { status: "ready", last_error: null } : unreadStatus),
      last_refreshed_at: null,
      created_at: app.clock.now(),
    });
    if (!made) throw toolsetNameTaken(input.name);
    await recordActivity(tx, actor, "agent_toolset.created", target(made), workspace.id);
    return made;
  });
  return toToolset(row.kind === "http" ? row : ((await readTools(app, row)) ?? row));
}

/** Status of a toolset until the server's tools are read. */
export const unreadStatus = { status: "unreachable", last_error: "the tools are not read yet" } as const;
