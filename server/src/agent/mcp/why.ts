/** Why a server could not be used, in words that its owner and the model may read. */
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

export interface Why {
  kind: "unreachable" | "auth_required" | "refused";
  text: string;
  /** Of `auth_required`. */
  refusal?: Refusal;
}

/** `refused`: it is there, and says no to this one request. `hide` blanks what nobody should read of a server's words. */
export function whyNot(error: unknown, hide: (text: string) => string = (text) => text): Why {
  const of = (kind: Why["kind"], text: string, refusal?: Refusal): Why => ({
    kind,
    text: hide(text).slice(0, wordsMaxCharacters),
    ...(refusal ? { refusal } : {}),
  });
  if (error instanceof UnauthorizedError || (error instanceof SdkHttpError && error.status === 401))
    return of("auth_required", "the server asks who calls (HTTP 401)", { scope: null });
  if (error instanceof InsufficientScopeError)
    return of("auth_required", "the server asks for more than was granted (HTTP 403)", {
      scope: error.requiredScope ?? "",
    });
  if (error instanceof ProtocolError) return of("refused", error.message);
  if (error instanceof SdkHttpError) {
    const { text } = error.data;
    const words = typeof text === "string" && text !== "" ? `: ${text}` : "";
    return of("unreachable", `the server answered HTTP ${error.status}${words}`);
  }
  if (error instanceof SdkError && error.code === SdkErrorCode.RequestTimeout)
    return of("unreachable", "the server did not answer in time");
  if (error instanceof AddressError) return of("unreachable", error.message);
  const { message, cause, code } = error as NodeJS.ErrnoException;
  if (cause instanceof AddressError) return of("unreachable", cause.message);
  return of("unreachable", message || code || "the connection failed");
}
