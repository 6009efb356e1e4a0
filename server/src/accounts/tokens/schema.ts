import { z } from "zod";
import { scopes, type Actor } from "../actor.ts";
import { workspaceName } from "../workspaces.ts";
import type { TokenRow } from "./store.ts";

const secretAccess = ["shown", "hidden"] as const;

export const ApiTokenCreate = z
  .object({
    name: z.string().trim().min(1).max(64),
    expires_in_days: z.literal([30, 90, 180, 365]).nullable().default(null).describe("Null: never."),
    scopes: z
      .array(z.enum(scopes))
      .min(1)
      .refine((list) => new Set(list).size === list.length, "must not repeat a scope")
      .nullable()
      .default(null)
      .describe("Null: full access."),
    workspace: z
      .string()
      .nullable()
      .default(null)
      .describe("`personal` or a team id; null: all that its owner can reach."),
    secrets: z
      .enum(secretAccess)
      .default("shown")
      .describe("With `hidden`, responses to the token hold hints in place of secrets, such as `…k3Fz`."),
  })
  .meta({ id: "ApiTokenCreate" });

const record = {
  id: z.string(),
  name: z.string(),
  prefix: z.string().describe("The token's first 8 characters."),
  token_hash: z.string().describe("SHA-256 of the token, hexadecimal."),
  scopes: z.array(z.enum(scopes)).nullable(),
  class: z.enum(["user", "agent"]),
  workspace: z.string().nullable(),
  secrets: z
    .enum(secretAccess)
    .describe("`shown` if the token reads secrets, `hidden` if it reads hints in their place."),
  created_at: z.iso.datetime(),
  expires_at: z.iso.datetime().nullable(),
  last_used_at: z.iso.datetime().nullable(),
};

export const ApiTokenResponse = z.object(record).meta({ id: "ApiTokenResponse" });
export const ApiTokenCreated = z
  .object({
    ...record,
    token: z.string().nullable().describe("The plaintext, this once; null in a replayed answer."),
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
