/** Names of all events, as documented. */
export const eventNames = [
  "sandbox.created",
  "sandbox.paused",
  "sandbox.resumed",
  "sandbox.terminated",
  "sandbox.expired",
  "sandbox.egress_denied",
  "sandbox.out_of_memory",
  "template.build_finished",
  "volume.moved",
] as const;
export type EventName = (typeof eventNames)[number];

export const eventOutcomes = ["ok", "failed"] as const;
export type EventOutcome = (typeof eventOutcomes)[number];
