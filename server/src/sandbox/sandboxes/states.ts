/** States of a sandbox and the transitions between them, for the operations, OpenAPI and the console. */
export const statuses = ["running", "paused", "terminated"] as const;
export type Status = (typeof statuses)[number];

export const transitions = ["pausing", "resuming", "terminating"] as const;

/** Operations on a sandbox, each with its source states and its target state. */
export const moves = {
  create: { from: [], to: "running" },
  keepAlive: { from: ["running"], to: "running" },
  pause: { from: ["running"], to: "paused" },
  resume: { from: ["paused"], to: "running" },
  expire: { from: ["running"], to: "terminated" },
  expireAndPause: { from: ["running"], to: "paused" },
  reclaim: { from: ["paused"], to: "terminated" },
  terminate: { from: ["running", "paused"], to: "terminated" },
} as const satisfies Record<string, { from: readonly Status[]; to: Status }>;

/**
 * Reasons for the end of a sandbox. `requested` means a delete, which works in every state and returns a terminated
 * sandbox unchanged.
 */
export const terminationReasons = [
  "requested",
  "timeout",
  "out_of_memory",
  "snapshot_expired",
  "host_lost",
  "start_failed",
] as const;
