/** Ids of end users, who are the people that use an agent. The agent's owner chooses these ids. */
import { createHmac } from "node:crypto";
import { z } from "zod";
import type { App } from "#app.ts";

/** Value that is stored in place of an id for runs without an end user. */
export const noEndUser = "-";

const pattern = z.string().regex(/^[A-Za-z0-9._:@-]{1,128}$/, {
  error: "must have 1 to 128 characters of A-Z, a-z, 0-9, . _ : @ and -",
});

export const EndUserId = pattern.refine((id) => id !== noEndUser, {
  error: "must not be -, which stands for runs without an end user",
});

export const EndUserIdOrNone = pattern.describe(
  "End user of the facts. `-` stands for runs without an end user.",
);

/**
 * Returns a hash that identifies an end user in the account's activity after an erasure. Only this server can compute
 * the hash.
 */
export function hashOfEndUser({ secrets }: Pick<App, "secrets">, agentId: string, endUserId: string): string {
  return createHmac("sha256", secrets.derive("end-user"))
    .update(`${agentId}/${endUserId}`)
    .digest("hex")
    .slice(0, 32);
}
