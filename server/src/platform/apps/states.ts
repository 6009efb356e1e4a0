/**
 * States of an instance and their transitions. A new instance is `starting`. Once healthy it becomes `live`, and the
 * earlier one `draining`; a failed check of the public address switches both back. A live instance can be `asleep` and
 * wake again. Every state can end in removal.
 */
import type { AppInstancesTable } from "./tables.ts";

export type InstanceState = AppInstancesTable["state"];

export const moves: Readonly<Record<InstanceState, readonly InstanceState[]>> = {
  starting: ["live"],
  live: ["asleep", "draining", "starting"],
  asleep: ["live", "draining"],
  draining: ["live", "asleep"],
};
