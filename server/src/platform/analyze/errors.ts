import { defineError } from "#lib/errors.ts";

export const analysisQueueFull = defineError("analysis_queue_full", 503, () => ({
  detail: "Too many analyses of your projects are waiting; try again once one has finished.",
  meta: { retry_after: 5 },
}));

/** Refuses project settings that no recipe supports. The request has no such field, so it is not a validation error. */
export const settingsRefused = defineError("invalid_request", 400, (why: string) => `project: ${why}`);
