/**
 * Events and fields that contain texts. These texts are erased an hour after the run's end; events and their sequence
 * numbers stay.
 */
export const textEvents: readonly string[] = [
  "message.delta",
  "message.completed",
  "reasoning.delta",
  "tool.input",
  "tool.completed",
  "tool.failed",
  "approval.requested",
  "approval.resolved",
  "run.completed",
];

export const textFields: readonly string[] = [
  "delta",
  "text",
  "output",
  "arguments",
  "result_preview",
  "reason",
  "question",
];
