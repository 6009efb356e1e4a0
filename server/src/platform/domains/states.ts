/** What a domain's status becomes by what was found of it. */
import type { Finding } from "./look.ts";

export type DomainStatus = "pending" | "verified" | "failed";

export interface DomainState {
  status: DomainStatus;
  /** Looks in a row that found it elsewhere. */
  misses: number;
  error: string | null;
}

/** One that served visitors is not given up for a zone file that was wrong for a minute. */
const missesOfVerified = 3;
/** Whoever has just entered a name sets its records within the next hour, or has forgotten it. */
const missesOfPending = 60;

/** `isAsked`: somebody wants to know now, and a pending name that is not right is told so. */
export function nextState(
  before: Pick<DomainState, "status" | "misses">,
  finding: Finding,
  { isAsked }: { isAsked: boolean },
): DomainState {
  switch (finding.is) {
    case "ours":
      return { status: "verified", misses: 0, error: null };
    case "unknown":
      return { ...before, error: finding.error };
    case "elsewhere": {
      const misses = before.misses + 1;
      const allowed = { verified: missesOfVerified, pending: isAsked ? 0 : missesOfPending, failed: 0 };
      const status = misses >= allowed[before.status] ? "failed" : before.status;
      return { status, misses, error: finding.error };
    }
  }
}
