import { defineError } from "#lib/errors.ts";

export const analysisQueueFull = defineError("analysis_queue_full", 503, () => ({
  detail: "Too many analyses of your projects are waiting; try again once one has finished.",
  meta: { retry_after: 5 },
}));

/**
 * Error for project settings that no recipe supports. The request does not contain them, so this is not a validation
 * error.
 */
export const settingsRefused = defineError("invalid_request", 400, (why: string) => `project: ${why}`);
