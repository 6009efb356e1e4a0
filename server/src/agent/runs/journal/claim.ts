/** The claim of a process on a run. */

/** `attempt` fences off every process that had the run before. */
export interface Claim {
  id: string;
  attempt: number;
}

