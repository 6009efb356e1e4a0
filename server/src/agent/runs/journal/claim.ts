/** The claim of a process on a run. */

/** `attempt` fences off every earlier process. */
export interface Claim {
  id: string;
  attempt: number;
}
