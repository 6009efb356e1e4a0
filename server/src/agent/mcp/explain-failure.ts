/** Explains why a server could not be used, as text for the toolset's owner and the model. */
import {
  InsufficientScopeError,
  ProtocolError,
  SdkError,
  SdkErrorCode,
  SdkHttpError,
  UnauthorizedError,
} from "@modelcontextprotocol/client";
import { AddressError } from "#lib/network/checked-lookup.ts";
import type { Refusal } from "../oauth/provider/refusal.ts";

const wordsMaxCharacters = 300;

export interface McpFailure {
  kind: "unreachable" | "auth_required" | "refused";
  text: string;
  /** Refusal by the server, set if `kind` is `auth_required`. */
  refusal?: Refusal;
}

/**
 * Returns the kind and text of a failure. Kind `refused`: the server is reachable and rejected this request. `hide`
 * blanks secrets in the server's text.
 */
export function explainFailure(error: unknown, hide: (text: string) => string = (text) => text): McpFailure {
  const of = (kind: McpFailure["kind"], text: string, refusal?: Refusal): McpFailure => ({
    kind,
    text: hide(text).slice(0, wordsMaxCharacters),
    ...(refusal ? { refusal } : {}),
  });
  if (error instanceof UnauthorizedError || (error instanceof SdkHttpError && error.status === 401))
    return of("auth_required", "the server requires credentials (HTTP 401)", { scope: null });
  if (error instanceof InsufficientScopeError)
    return of("auth_required", "the server requires more scopes than were granted (HTTP 403)", {
      scope: error.requiredScope ?? "",
    });
  if (error instanceof ProtocolError) return of("refused", error.message);
  if (error instanceof SdkHttpError) {
    const { text } = error.data;
    const words = typeof text === "string" && text !== "" ? `: ${text}` : "";
    return of("unreachable", `the server returned HTTP ${error.status}${words}`);
  }
  if (error instanceof SdkError && error.code === SdkErrorCode.RequestTimeout)
    return of("unreachable", "the server did not respond in time");
  if (error instanceof AddressError) return of("unreachable", error.message);
  const { message, cause, code } = error as NodeJS.ErrnoException;
  if (cause instanceof AddressError) return of("unreachable", cause.message);
  return of("unreachable", message || code || "the connection failed");
}
