import { defineError } from "#lib/errors.ts";

export const analysisQueueFull = defineError("analysis_queue_full", 503, () => ({
  detail: "Too many analyses of your projects are waiting; try again once one has finished.",
  meta: { retry_after: 5 },
}));
