/** Whom an agent speaks with, by the name its owner has for them. */
import { createHmac } from "node:crypto";
import { z } from "zod";
import type { App } from "#app.ts";

/** Stands for runs without an end user, and for the account's owner. */
export const nobody = "-";

const pattern = z
  .string()
  .regex(/^[A-Za-z0-9._:@-]{1,128}$/, { error: "must be 1 to 128 of A-Z, a-z, 0-9, . _ : @ and -" });

export const EndUserId = pattern.refine((id) => id !== nobody, {
  error: "- stands for runs without an end user",
});

export const EndUserIdOrNobody = pattern.describe(
  "End user of the facts. `-` stands for runs without an end user.",
);

/** What an account's log says in the person's place: the same for the same person, and nothing to anybody else. */
export function hashOfEndUser({ secrets }: Pick<App, "secrets">, agentId: string, endUserId: string): string {
  return createHmac("sha256", secrets.derive("end-user"))
    .update(`${agentId}/${endUserId}`)
    .digest("hex")
    .slice(0, 32);
}
