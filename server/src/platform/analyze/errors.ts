import { defineError } from "#lib/errors.ts";

export const analysisQueueFull = defineError("analysis_queue_full", 503, () => ({
  detail: "Many analyses of your projects wait already; try again once one has finished.",
  meta: { retry_after: 5 },
}));
