/** Next status of a domain after a check. */
import type { Finding } from "./dns-lookup.ts";

type DomainStatus = "pending" | "verified" | "failed";

export interface DomainState {
  status: DomainStatus;
  /** Number of checks in a row that found the name elsewhere. */
  misses: number;
  error: string | null;
}

/** A verified domain survives a zone that is wrong for a minute. */
const missesOfVerified = 3;
/** Owners set the records within an hour, or have forgotten the domain. */
const missesOfPending = 60;

/** `isAsked`: the owner requested the check, and gets the error of a pending name as well. */
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
