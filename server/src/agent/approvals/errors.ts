import { defineError } from "#lib/errors.ts";
import type { ApprovalStatus } from "./states.ts";

export const approvalNotFound = defineError(
  "approval_not_found",
  404,
  () => "The run has no such approval request.",
);
export const approvalDecided = defineError("approval_decided", 409, (outcome: ApprovalStatus) => ({
  detail:
    outcome === "cancelled"
      ? "The run was ended before anybody decided; there is nothing left to decide."
      : `This was ${outcome} already; a decision can't be changed.`,
  meta: { outcome },
}));
export const approvalExpired = defineError(
  "approval_expired",
  410,
  () => "Nobody decided in time. Look at the run for what came of it.",
);
