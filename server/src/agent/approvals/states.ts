/** Kinds and states of an approval: pending, and then one of the others for good. */

/** `call`: may this call be made. `elicitation`: a question of the server during a call. */
export const approvalKinds = ["call", "elicitation"] as const;
export type ApprovalKind = (typeof approvalKinds)[number];

export const approvalStatuses = ["pending", "approved", "denied", "expired", "cancelled"] as const;
export type ApprovalStatus = (typeof approvalStatuses)[number];

/** Decisions of a person, and the status after each. */
export const decisions = { approve: "approved", deny: "denied", cancel: "cancelled" } as const;
export type Decision = keyof typeof decisions;
