/** A process claims a run to execute it. */

/** Claim of a process on a run. Only the process with the newest `attempt` can write. */
export interface Claim {
  id: string;
  attempt: number;
}
