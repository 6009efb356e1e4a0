/** Updates a toolset. Credentials of one origin never go to another origin. */
import type { Actor } from "#accounts/actor.ts";
import { recordActivity } from "#accounts/activity/activity.ts";
import { homeWorkspace } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import { unpinClient, revokeAllConnections } from "../oauth/revocation.ts";
import {
  addressOf,
  requireAddress,
  requireClient,
  requireOneAuthMethod,
  requireToolsOfKind,
  requireTools,
  scopesOf,
} from "./checks.ts";
import { unreadStatus } from "./create.ts";
import { openHeaders, toolColumns, withoutHeaders } from "./calls/headers.ts";
import { readTools } from "./tools/read-tools.ts";
import { type Toolset, type ToolsetUpdate, toToolset } from "./schema.ts";
import { clientSecretColumns, secretColumns } from "./calls/secrets.ts";
import { changeToolset, type ToolsetChange, type ToolsetRow } from "./store.ts";
import { lockReachable, requireWritable, target } from "./toolsets.ts";

export async function update(app: App, actor: Actor, id: string, input: ToolsetUpdate): Promise<Toolset> {
  if (input.url !== undefined) await requireAddress(app, homeWorkspace(actor), input.url);
  if (input.http_tools !== undefined) await requireTools(homeWorkspace(actor), input.http_tools);
  const { row, isOther } = await app.db.transaction().execute(async (tx) => {
    const row = await lockReachable(tx, actor, id);
    requireWritable(actor, row);
    requireToolsOfKind(row.kind, input.http_tools ?? row.http_tools);
    requireOneAuthMethod(row.auth_type === "oauth", input);
    if (isMoving(row, input)) await revokeAllConnections(tx, id);
    if (input.oauth_client_id !== undefined || input.oauth_client_secret !== undefined)
      await unpinClient(tx, id);
    const changed = await changeToolset(tx, id, changeOf(app, row, input));
    requireClient(changed.oauth_client_id, changed.oauth_client_secret_sealed !== null);
    await recordActivity(tx, actor, "agent_toolset.updated", target(row), row.workspace_id, {
      fields: Object.keys(input),
    });
    const isOther = moved.some((column) => String(changed[column]) !== String(row[column]));
    return { row: changed, isOther };
  });
  return toToolset(row.kind === "mcp" && isOther ? ((await readTools(app, row)) ?? row) : row);
}

/** Columns that select the server or the credentials. After a change of one of them, the tools must be read again. */
const moved = ["url", "auth_header_name", "auth_secret_sealed"] as const;

function changeOf(app: Pick<App, "secrets">, row: ToolsetRow, input: ToolsetUpdate): ToolsetChange {
  const moves = isMoving(row, input);
  const secret = input.auth_secret ?? (moves ? "" : undefined);
  const client = input.oauth_client_id === undefined && moves ? null : input.oauth_client_id;
  const clientSecret = input.oauth_client_secret ?? (moves || client === null ? "" : undefined);
  const hasSecret = secret === undefined ? row.auth_secret_sealed !== null : secret !== "";
  return {
    ...(input.url === undefined ? {} : { url: addressOf(row.kind, input.url) }),
    ...(moves && row.kind === "mcp" ? { ...unreadStatus, tools_cached: "[]", last_refreshed_at: null } : {}),
    ...(input.auth_header_name === undefined ? {} : { auth_header_name: input.auth_header_name }),
    ...(secret === undefined ? {} : secretColumns(app, row.id, secret)),
    ...(row.auth_type === "oauth" ? {} : { auth_type: hasSecret ? "header" : "none" }),
    ...(client === undefined ? {} : { oauth_client_id: client }),
    ...(clientSecret === undefined ? {} : clientSecretColumns(app, row.id, clientSecret)),
    ...(input.oauth_scopes === undefined ? {} : { oauth_scopes: scopesOf(input.oauth_scopes) }),
    ...(input.oauth_per_end_user === undefined ? {} : { oauth_per_end_user: input.oauth_per_end_user }),
    ...toolsChange(app, row, input),
    ...(input.tool_overrides === undefined ? {} : { tool_overrides: JSON.stringify(input.tool_overrides) }),
  };
}

function toolsChange(app: Pick<App, "secrets">, row: ToolsetRow, input: ToolsetUpdate): ToolsetChange {
  if (isMoving(row, input))
    return toolColumns(app, row.id, input.http_tools ?? withoutHeaders(row.http_tools), { isMoving: true });
  if (input.http_tools === undefined) return {};
  return toolColumns(app, row.id, input.http_tools, { stored: openHeaders(app, row) });
}

function isMoving(row: ToolsetRow, { url }: ToolsetUpdate): boolean {
  return url !== undefined && new URL(url).origin !== new URL(row.url).origin;
}
