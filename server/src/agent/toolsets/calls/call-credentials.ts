/** Selects the credentials of a call to a toolset's server: the stored secret, or the OAuth connection of a person. */
import { createHash } from "node:crypto";
import type { App } from "#app.ts";
import {
  resolveAccess,
  recordRequiredScopes,
  type NoAccess,
  expireRefusedToken,
} from "#agent/oauth/access.ts";
import type { Refusal } from "#agent/oauth/provider/refusal.ts";
import type { McpPeer } from "#agent/mcp/connections.ts";
import type { Elicitation } from "#agent/mcp/elicitation.ts";
import type { McpAddress } from "#agent/mcp/open.ts";
import { hide } from "#agent/tools/result.ts";
import { authOf, openSecret } from "./secrets.ts";
import type { ToolsetRow } from "../store.ts";

export interface CallCredentials {
  kind: "open";
  address: McpAddress;
  /** Id of the OAuth connection. Null if the stored secret authorizes the calls. */
  connection: string | null;
  /** Function that blanks the credentials in a text. */
  hide: (text: string) => string;
  /** Handles a refusal by the server. Returns the credentials for a retry, or undefined if there are none. */
  handleRefusal: (refusal: Refusal) => Promise<CredentialsResult | undefined>;
}

export type CredentialsResult = CallCredentials | NoAccess;

export async function resolveCredentials(
  app: App,
  row: ToolsetRow,
  endUserId: string | null,
): Promise<CredentialsResult> {
  const { url } = row;
  if (row.auth_type !== "oauth") {
    const secret = openSecret(app, row);
    const address = { url, headers: authOf(row, secret) };
    return {
      kind: "open",
      address,
      connection: null,
      hide: (text) => hide(text, secret),
      handleRefusal: async () => undefined,
    };
  }
  const access = await resolveAccess(app, row, endUserId);
  if (access.kind !== "token") return access;
  const used = new Set([access.token]);
  const token = async () => {
    const now = await resolveAccess(app, row, endUserId);
    // Calls of one connection never continue with the account of another connection.
    if (now.kind !== "token" || now.connection !== access.connection) return undefined;
    used.add(now.token);
    return now.token;
  };
  return {
    kind: "open",
    address: { url, headers: {}, token },
    connection: access.connection,
    hide: (text) => [...used].reduce(hide, text),
    handleRefusal: async ({ scope }) => {
      const last = [...used].at(-1) ?? "";
      if (scope === null) await expireRefusedToken(app, row, endUserId, last);
      const asked =
        scope === null ? undefined : await recordRequiredScopes(app, row, endUserId, { token: last, scope });
      return asked ?? resolveCredentials(app, row, endUserId);
    },
  };
}

/**
 * Returns the key and version of an MCP connection, for a toolset and an end user. If `version` changes, a new
 * connection is opened.
 */
export function peerOf(
  row: ToolsetRow,
  endUserId: string | null,
  { address, connection }: CallCredentials,
  onToolsChanged: () => void,
  elicitation?: Elicitation,
): McpPeer {
  const made = JSON.stringify([row.url, row.auth_type, row.oauth_per_end_user, connection, address.headers]);
  return {
    // The key contains the elicitation, because it is negotiated when a connection opens.
    key: JSON.stringify([row.id, endUserId, elicitation]),
    version: createHash("sha256").update(made).digest("base64"),
    address,
    owner: row.workspace_id,
    onToolsChanged,
    elicitation,
  };
}
