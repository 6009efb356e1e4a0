import { z } from "zod";
import type { Actor } from "../actor.ts";
import { scopes } from "../roles.ts";
import { workspaceName } from "../workspaces.ts";
import type { TokenRow } from "./store.ts";

const secretAccess = ["shown", "hidden"] as const;

export const ApiTokenCreate = z
  .object({
    name: z
      .string()
      .trim()
      .min(1)
      .max(64)
      .describe("Display name, 1 to 64 characters. The audit log shows it as the actor."),
    expires_in_days: z
      .literal([30, 90, 180, 365])
      .nullable()
      .default(null)
      .describe("Days until the token expires. Null: it does not expire. Default: null."),
    scopes: z
      .array(z.enum(scopes))
      .min(1)
      .refine((list) => new Set(list).size === list.length, "must not repeat a scope")
      .nullable()
      .default(null)
      .describe("Scopes of the token; a write scope includes reading. Null: full access. Default: null."),
    workspace: z
      .string()
      .nullable()
      .default(null)
      .describe(
        "Only workspace that the token reaches: `personal` or a team id. Null: all workspaces of its owner. Default: null.",
      ),
    secrets: z
      .enum(secretAccess)
      .default("shown")
      .describe(
        "With `hidden`, responses to the token contain hints in place of secrets, such as `…k3Fz`. Default: `shown`.",
      ),
  })
  .meta({ id: "ApiTokenCreate" });

const record = {
  id: z.string().describe("Id of the token, such as `tok_3k9x0c1m5r7t`."),
  name: z.string().describe("Name that was given at creation."),
  prefix: z.string().describe("First 8 characters of the token."),
  token_hash: z.string().describe("SHA-256 of the token, hexadecimal."),
  scopes: z
    .array(z.enum(scopes))
    .nullable()
    .describe("Scopes of the token; a write scope includes reading. Null: full access."),
  class: z
    .enum(["user", "agent"])
    .describe(
      "`user` for all listed tokens. Tokens that agents get for their runs (`agent`) are not listed.",
    ),
  workspace: z
    .string()
    .nullable()
    .describe(
      "Only workspace that the token reaches: `personal` or a team id. Null: all workspaces of its owner.",
    ),
  secrets: z
    .enum(secretAccess)
    .describe("`shown` if the token reads secrets, `hidden` if it reads hints in their place."),
  created_at: z.iso.datetime().describe("Time of creation."),
  expires_at: z.iso
    .datetime()
    .nullable()
    .describe("Time at which the token stops working. Null: it does not expire."),
  last_used_at: z.iso
    .datetime()
    .nullable()
    .describe("Time of the last use, exact to a minute. Null until the first use."),
};

export const ApiTokenResponse = z.object(record).meta({ id: "ApiTokenResponse" });
export const ApiTokenCreated = z
  .object({
    ...record,
    token: z
      .string()
      .nullable()
      .describe("Plaintext of the token, only in this response. Null in a replayed response."),
  })
  .meta({ id: "ApiTokenCreated" });

export function toApiToken(row: TokenRow, actor: Actor): z.output<typeof ApiTokenResponse> {
  return {
    id: row.id,
    name: row.name,
    prefix: row.prefix,
    token_hash: row.token_hash,
    scopes: row.scopes as z.output<typeof ApiTokenResponse>["scopes"],
    class: row.class,
    workspace: row.workspace_id === null ? null : workspaceName(actor, row.workspace_id),
    secrets: row.secrets,
    created_at: row.created_at.toISOString(),
    expires_at: row.expires_at?.toISOString() ?? null,
    last_used_at: row.last_used_at?.toISOString() ?? null,
  };
}
