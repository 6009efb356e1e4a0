import { defineError } from "#lib/errors.ts";
import type { Plan, SandboxTier, TeamRole } from "./actor.ts";

export const workspaceNotFound = defineError("workspace_not_found", 404, () => "No such workspace.");

export const accountSuspended = defineError(
  "account_suspended",
  402,
  () => "This account is suspended: nothing can be created or changed until the operator lifts that.",
);

/** `limit` names what is limited, `tierNeeded` the cheapest plan or tier that allows more; null where none does. */
export const planLimit = defineError(
  "plan_limit",
  403,
  (limit: string, allowed: number | boolean | readonly string[], tierNeeded: Plan | SandboxTier | null) => ({
    detail:
      `The plan's limit of ${limit} is reached (${String(allowed)} allowed).` +
      (tierNeeded === null ? "" : ` It takes ${tierNeeded} for more.`),
    meta: { limit, allowed, tier_needed: tierNeeded },
  }),
);

export const insufficientRole = defineError(
  "insufficient_role",
  403,
  (needed: Exclude<TeamRole, "viewer">) => ({
    detail: {
      owner: "Only an owner of the team may do this.",
      admin: "Only an owner or an admin of the team may do this.",
      member: "A viewer reads only; ask an admin of the team for the role member.",
    }[needed],
    meta: { role_needed: needed },
  }),
);

export const signInLimited = defineError("rate_limited", 429, (retryAfterSeconds: number) => ({
  detail: `Too many sign-ins to this account; try again in ${retryAfterSeconds} s.`,
  meta: { retry_after: retryAfterSeconds },
}));
