/** What an approval may be: pending, and then one of the others for good. */

export const approvalStatuses = ["pending", "approved", "denied", "expired", "cancelled"] as const;
export type ApprovalStatus = (typeof approvalStatuses)[number];

/** What a person may say, and what the approval is from then on. */
export const decisions = { approve: "approved", deny: "denied" } as const;
export type Decision = keyof typeof decisions;
