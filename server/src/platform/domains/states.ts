/** Computes a domain's next status after a check. */
import type { Finding } from "./dns-lookup.ts";

type DomainStatus = "pending" | "verified" | "failed";

export interface DomainState {
  status: DomainStatus;
  /** Number of checks in a row that found the name at another server. */
  misses: number;
  error: string | null;
}

/** Misses in a row after which a verified domain fails. A zone that is wrong for a minute stays below. */
const missesOfVerified = 3;
/**
 * Misses in a row after which a pending domain fails. By then, an hour after the request, the owner has set the records
 * or forgotten the domain.
 */
const missesOfPending = 60;

/** Returns the next state. `isAsked`: the owner requested the check, so a pending name gets its error as well. */
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
