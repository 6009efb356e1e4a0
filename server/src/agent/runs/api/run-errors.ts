import { defineError } from "#lib/errors.ts";

export const runNotFound = defineError("run_not_found", 404, () => "No such run.");
export const agentPaused = defineError("agent_paused", 403, (every: boolean) =>
  every
    ? "All agents of the account are paused. Resume them first."
    : "The agent is paused. Resume it first.",
);
export const agentArchived = defineError(
  "agent_archived",
  409,
  () => "The agent is archived. Set `archived` to false with PATCH /v1/agents/{agent} to use it again.",
);
export const runNotResumable = defineError(
  "run_not_resumable",
  409,
  (why: string) => `The run can't be resumed: ${why}`,
);
export const credentialMissing = defineError(
  "credential_missing",
  424,
  () =>
    "The version's model credential was deleted. Create a credential, and publish a version that names it.",
);
export const sessionBusy = defineError("session_busy", 409, (runId: string) => ({
  detail: "The session has an active run. Retry after it ends.",
  meta: { run_id: runId, retry_after: 1 },
}));
export const sessionPinned = defineError(
  "session_pinned",
  409,
  ({ pinned, wanted }: { pinned: number | null; wanted: number }) => ({
    detail: `The session is pinned to version ${pinned}. Leave out \`qualifier\` to continue with it, or send \`upgrade: true\` to pin it to version ${wanted}.`,
    meta: { version: pinned },
  }),
);
export const approvalPending = defineError("approval_pending", 409, (runId: string) => ({
  detail: "The session waits for an approval or a sign-in. Decide, sign in, or cancel the run first.",
  meta: { run_id: runId },
}));
export const tooManyRuns = defineError("too_many_runs", 429, (allowed: number) => ({
  detail: `The plan allows ${allowed} runs in flight. Retry after one ends.`,
  meta: { limit: "runs_in_flight", allowed, retry_after: 2 },
}));
export const sessionQueueFull = defineError("session_queue_full", 429, (allowed: number) => ({
  detail: `${allowed} runs already wait for this session. Retry after some of them have ended.`,
  meta: { limit: "waiting_runs", allowed, retry_after: 30 },
}));
export const stepNotFound = defineError(
  "step_not_found",
  404,
  () => "The run has no complete step with this number.",
);
export const promptExpired = defineError(
  "prompt_expired",
  410,
  () =>
    "The prompt of this step is deleted. Prompts are kept until an hour after the run's end, or until the session ends. Steps that write a summary have no prompt.",
);
