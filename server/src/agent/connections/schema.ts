/** The wire of connections. */
import { z } from "zod";
import { isSafe } from "./provider.ts";
import type { ConnectionRow } from "./store.ts";

const timestamp = z.iso.datetime();

export const ToolsetParams = z.strictObject({ toolset_id: z.string().max(64) });
const EndUserId = z
  .string()
  .regex(/^[A-Za-z0-9._:@-]{1,128}$/, { error: "must be 1 to 128 of A-Z, a-z, 0-9, . _ : @ and -" });
export const ConnectionParams = ToolsetParams.extend({ end_user_id: EndUserId });

export const SignInStart = z
  .strictObject({
    end_user_id: EndUserId.optional().describe("Who is to sign in; `-` or absent: the account's owner."),
    return_url: z
      .string()
      .max(2048)
      .refine(isSafe, { error: "must be an https URL, or an http one of this host itself" })
      .optional()
      .describe(
        "Where the person goes afterwards, with `connection=connected`, or `connection=failed` and an `error`.",
      ),
  })
  .meta({ id: "AgentSignInStart" });
export type SignInStart = z.output<typeof SignInStart>;

export const SignInLink = z
  .object({
    authorize_url: z.string().describe("For one person, to be opened in a browser, once."),
    expires_in: z.number().int().describe("Seconds."),
  })
  .meta({ id: "AgentSignInLink" });
export type SignInLink = z.output<typeof SignInLink>;

export const Connection = z
  .object({
    end_user_id: z.string().describe("`-` is the account's owner."),
    scope: z.string().nullable(),
    status: z.enum(["connected", "needs_reauth"]),
    expires_at: timestamp.nullable().describe("The token's; a newer one is asked for before that."),
    connected_at: timestamp,
  })
  .meta({ id: "AgentConnection" });
export type Connection = z.output<typeof Connection>;
export const ConnectionList = z.object({ items: z.array(Connection) }).meta({ id: "AgentConnectionList" });

/** The only way from a row to JSON. */
export function toConnection(row: ConnectionRow): Connection {
  return {
    end_user_id: row.end_user_id,
    scope: row.scope,
    status: row.status,
    expires_at: row.expires_at?.toISOString() ?? null,
    connected_at: row.connected_at.toISOString(),
  };
}
