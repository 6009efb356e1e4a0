/** States of a run, and codes of its failures. */

export const runStatuses = ["queued", "running", "pending_approval", "completed", "failed"] as const;
export type RunStatus = (typeof runStatuses)[number];

/** States in which a run blocks other runs of its session. */
export const activeStatuses: readonly RunStatus[] = ["queued", "running", "pending_approval"];

export function isOver(status: RunStatus): boolean {
  return status === "completed" || status === "failed";
}

export const runErrorCodes = [
  "cancelled",
  "model_error",
  "model_rate_limited",
  "credential_missing",
  "limit_steps",
  "limit_tokens",
  "limit_time",
  "tool_unavailable",
  "approval_expired",
  "output_invalid",
  "session_ended",
  "vm_lost",
  "internal",
] as const;
export type RunErrorCode = (typeof runErrorCodes)[number];

export const finishReasons = ["stop", "length", "tool_calls", "content_filter", "error"] as const;
export type FinishReason = (typeof finishReasons)[number];

/** Maps the provider's finish reason. An unknown reason becomes `stop`. */
export function toFinishReason(unified: string): FinishReason {
  const name = unified.replace("-", "_");
  return finishReasons.find((each) => each === name) ?? "stop";
}
