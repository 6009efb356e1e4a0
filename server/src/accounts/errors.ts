import { defineError } from "#lib/errors.ts";
import type { Plan, SandboxTier, TeamRole } from "./roles.ts";

export const workspaceNotFound = defineError("workspace_not_found", 404, () => "No such workspace.");

export const accountSuspended = defineError(
  "account_suspended",
  402,
  () =>
    "This account is suspended: creating and changing is not possible until the operator ends the " +
    "suspension.",
);

/** Cause of a `plan_limit` for a counted resource. Names the workspace that gets a notification. */
export class LimitReached {
  readonly workspaceId: string;
  readonly limit: string;

  constructor(workspaceId: string, limit: string) {
    this.workspaceId = workspaceId;
    this.limit = limit;
  }
}

/**
 * `tierNeeded`: the cheapest plan or tier that allows more, or null if none does. `workspace`: set for a limit of a
 * count; this workspace gets a notification.
 */
export const planLimit = defineError(
  "plan_limit",
  403,
  (
    limit: string,
    allowed: number | boolean | readonly string[],
    tierNeeded: Plan | SandboxTier | null,
    workspaceId?: string,
  ) => ({
    detail: refusal(limit, allowed) + (tierNeeded === null ? "" : ` For more, change to ${tierNeeded}.`),
    meta: { limit, allowed, tier_needed: tierNeeded },
    ...(workspaceId === undefined ? {} : { cause: new LimitReached(workspaceId, limit) }),
  }),
);

function refusal(limit: string, allowed: number | boolean | readonly string[]): string {
  if (typeof allowed === "number") return `The plan's limit of ${limit} is reached (${allowed} allowed).`;
  if (typeof allowed === "boolean") return `The plan does not include ${limit}.`;
  return `The plan allows only these values of ${limit}: ${allowed.join(", ")}.`;
}

export const insufficientRole = defineError(
  "insufficient_role",
  403,
  (needed: Exclude<TeamRole, "viewer">) => ({
    detail: {
      owner: "Only an owner of the team may do this.",
      admin: "Only an owner or an admin of the team may do this.",
      member: "A viewer can only read; ask an admin of the team for the role member.",
    }[needed],
    meta: { role_needed: needed },
  }),
);

export const signInLimited = defineError("rate_limited", 429, (retryAfterSeconds: number) => ({
  detail: `Too many sign-ins to this account; retry after ${retryAfterSeconds} s.`,
  meta: { retry_after: retryAfterSeconds },
}));
