/** Parses the refusal of a call from the response of the tool server (RFC 6750, section 3.1). */
import { extractWWWAuthenticateParams } from "@modelcontextprotocol/client";

export interface Refusal {
  /**
   * Scopes that the server requires in addition; empty if the server names none. Null if the server does not accept the
   * token.
   */
  scope: string | null;
}

/** Returns the refusal, or undefined if the response does not refuse the credentials. */
export function parseRefusal(response: Response): Refusal | undefined {
  if (response.status === 401) return { scope: null };
  if (response.status !== 403) return undefined;
  const { error, scope = "" } = extractWWWAuthenticateParams(response);
  return error === "insufficient_scope" ? { scope } : undefined;
}
