import { defineError } from "#lib/errors.ts";

export const runNotFound = defineError("run_not_found", 404, () => "No such run.");
export const agentPaused = defineError("agent_paused", 403, (every: boolean) =>
  every ? "Every agent of the account is paused." : "The agent is paused.",
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
  () => "The version's model credential was removed. Add one, and publish a version that names it.",
);
export const sessionBusy = defineError("session_busy", 409, (runId: string) => ({
  detail: "A run is going in this session already; try again when it ended.",
  meta: { run_id: runId, retry_after: 1 },
}));
export const sessionPinned = defineError(
  "session_pinned",
  409,
  ({ pinned, wanted }: { pinned: number | null; wanted: number }) => ({
    detail: `The session is pinned to version ${pinned}. Leave out \`qualifier\` to go on with it, or send \`upgrade: true\` to pin it to version ${wanted}.`,
    meta: { version: pinned },
  }),
);
export const approvalPending = defineError("approval_pending", 409, (runId: string) => ({
  detail: "The session waits for an approval or a sign-in. Decide, sign in, or cancel the run first.",
  meta: { run_id: runId },
}));
export const tooManyRuns = defineError("too_many_runs", 429, (allowed: number) => ({
  detail: `The plan has at most ${allowed} runs in flight; try again when one ended.`,
  meta: { limit: "runs_in_flight", allowed, retry_after: 2 },
}));
export const sessionQueueFull = defineError("session_queue_full", 429, (allowed: number) => ({
  detail: `${allowed} runs already wait for this session. Retry after some of them have ended.`,
  meta: { limit: "waiting_runs", allowed, retry_after: 30 },
}));
export const stepNotFound = defineError("step_not_found", 404, () => "The run has no such complete step.");
export const promptExpired = defineError(
  "prompt_expired",
  410,
  () =>
    "The prompt of this step is deleted: prompts are kept until an hour after the run's end, while the session lives. A step that wrote a summary has none.",
);
