/**
 * States of an instance and their transitions. A new instance is `starting`. Once healthy it becomes `live`, and the
 * earlier one `draining`. If the check of the public address fails, both transitions are reverted. A live instance can
 * become `asleep`, and `live` again. Every state can end in removal.
 */
import type { AppInstancesTable } from "./tables.ts";

export type InstanceState = AppInstancesTable["state"];

export const moves: Readonly<Record<InstanceState, readonly InstanceState[]>> = {
  starting: ["live"],
  live: ["asleep", "draining", "starting"],
  asleep: ["live", "draining"],
  draining: ["live", "asleep"],
};
