/**
 * What an instance may become. It is made `starting`; where it answers it takes the place of the one before, which is
 * `draining` from then on and may come back if the public way does not lead to the new one. One that serves may rest,
 * `asleep`, and goes on as what it was. From every state it may go altogether.
 */
import type { AppInstancesTable } from "./tables.ts";

export type InstanceState = AppInstancesTable["state"];

export const moves: Readonly<Record<InstanceState, readonly InstanceState[]>> = {
  starting: ["live"],
  live: ["asleep", "draining", "starting"],
  asleep: ["live", "draining"],
  draining: ["live", "asleep"],
};
