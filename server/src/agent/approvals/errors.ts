import { defineError } from "#lib/errors.ts";
import type { ApprovalStatus } from "./states.ts";

export const approvalNotFound = defineError(
  "approval_not_found",
  404,
  () => "The run has no such approval request. GET the run for its pending approvals.",
);
export const approvalDecided = defineError("approval_decided", 409, (outcome: ApprovalStatus) => ({
  detail:
    outcome === "cancelled"
      ? "The request was cancelled: its run or its call ended, or the question was dismissed. No " +
        "decision is needed."
      : `The request is already ${outcome}. A decision is final.`,
  meta: { outcome },
}));
/** Thrown if the approval was decided with other arguments. The error has the code of `approvalDecided`. */
export const approvalEdited = defineError("approval_decided", 409, () => ({
  detail:
    "The call was already approved with other arguments. A decision is final; the run's " +
    "`approval.resolved` event contains the approved arguments.",
  meta: { outcome: "approved" },
}));
/** Thrown if the question was answered with other content. The error has the code of `approvalDecided`. */
export const answerGiven = defineError("approval_decided", 409, () => ({
  detail: "The question was already answered with other content. An answer can't be changed.",
  meta: { outcome: "approved" },
}));
export const approvalExpired = defineError(
  "approval_expired",
  410,
  () => "The approval expired without a decision. GET the run for its outcome.",
);
