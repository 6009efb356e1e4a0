/** Why a server does not let a call in, as its answer says it (RFC 6750, 3.1). */
import { extractWWWAuthenticateParams } from "@modelcontextprotocol/client";

export interface Refusal {
  /** What it wants beyond what was granted, empty where it does not say; null: it takes the token for none. */
  scope: string | null;
}

/** Undefined where that is not what it says. */
export function refusalOf(response: Response): Refusal | undefined {
  if (response.status === 401) return { scope: null };
  if (response.status !== 403) return undefined;
  const { error, scope = "" } = extractWWWAuthenticateParams(response);
  return error === "insufficient_scope" ? { scope } : undefined;
}
