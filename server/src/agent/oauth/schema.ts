/** Wire format of connections. */
import { z } from "zod";
import { isSafe } from "./provider/metadata.ts";
import type { ConnectionRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const ToolsetParams = z.strictObject({
  toolset_id: z.string().max(64).describe("Id of the toolset: `tst_…`."),
});
const EndUserId = z
  .string()
  .regex(/^[A-Za-z0-9._:@-]{1,128}$/, { error: "must be 1 to 128 of A-Z, a-z, 0-9, . _ : @ and -" });
export const ConnectionParams = ToolsetParams.extend({
  end_user_id: EndUserId.describe(
    "End user of the connection, or `-` for the connection of the workspace's owner.",
  ),
});

export const SignInStart = z
  .strictObject({
    end_user_id: EndUserId.optional().describe(
      "End user who signs in, or `-` for the workspace's owner. Default `-`.",
    ),
    return_url: z
      .string()
      .max(2048)
      .refine(isSafe, { error: "must be an https URL, or an http one of this host itself" })
      .optional()
      .describe(
        "URL that the browser opens after the sign-in: https, or http on loopback. The query contains `connection=connected`, or `connection=failed` and an `error`. Default: a page of this server.",
      ),
  })
  .meta({ id: "AgentSignInStart" });
export type SignInStart = z.output<typeof SignInStart>;

export const SignInLink = z
  .object({
    authorize_url: z.string().describe("Link that the person opens in a browser. It works once."),
    expires_in: z.number().int().describe("Seconds until the link expires, for example 600."),
  })
  .meta({ id: "AgentSignInLink" });
export type SignInLink = z.output<typeof SignInLink>;

export const Connection = z
  .object({
    end_user_id: z.string().describe("End user of the connection, or `-` for the workspace's owner."),
    scope: z
      .string()
      .nullable()
      .describe("OAuth scopes that were granted, separated by spaces. Null if none were named."),
    status: z
      .enum(["connected", "needs_reauth"])
      .describe("`connected`, or `needs_reauth` if the person has to sign in again."),
    expires_at: timestamp
      .nullable()
      .describe(
        "Time when the access token expires. Calls refresh the token from a minute before. Null if the provider named no time.",
      ),
    connected_at: timestamp.describe("Time of the last sign-in."),
  })
  .meta({ id: "AgentConnection" });
export type Connection = z.output<typeof Connection>;
export const ConnectionList = z
  .object({
    items: z
      .array(Connection)
      .describe("Connections of the toolset: the owner's first, then by last sign-in."),
  })
  .meta({ id: "AgentConnectionList" });

/** Converts a row to the JSON of every response. */
export function toConnection(row: ConnectionRow): Connection {
  return {
    end_user_id: row.end_user_id,
    scope: row.scope,
    status: row.status,
    expires_at: row.expires_at?.toISOString() ?? null,
    connected_at: row.connected_at.toISOString(),
  };
}
