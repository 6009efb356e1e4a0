/** A sandbox's states and the moves between them: used by the verbs, written into OpenAPI, read by the console. */
export const statuses = ["running", "paused", "terminated"] as const;
export type Status = (typeof statuses)[number];

export const transitions = ["pausing", "resuming", "terminating"] as const;

/** verb → the states it may start from, and the one it ends in */
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

/** Delete works in every state: on a terminated sandbox it changes nothing and answers the same. */
export const terminationReasons = [
  "requested",
  "timeout",
  "out_of_memory",
  "snapshot_expired",
  "host_lost",
  "start_failed",
] as const;
