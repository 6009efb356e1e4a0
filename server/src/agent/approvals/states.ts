/** Kinds and states of an approval. An approval is pending first, and then has one final state. */

/**
 * `call`: a person decides whether the call is made. `elicitation`: the tool's server sends a question during the call.
 */
export const approvalKinds = ["call", "elicitation"] as const;
export type ApprovalKind = (typeof approvalKinds)[number];

const approvalStatuses = ["pending", "approved", "denied", "expired", "cancelled"] as const;
export type ApprovalStatus = (typeof approvalStatuses)[number];

/** Decisions of a person, each with the status that follows. */
export const decisions = { approve: "approved", deny: "denied", cancel: "cancelled" } as const;
export type Decision = keyof typeof decisions;
