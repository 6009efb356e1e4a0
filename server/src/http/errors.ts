/** Errors that HTTP itself returns, before a handler runs. Each API's document lists the errors that apply to it. */
import { defineError } from "#lib/errors.ts";
import type { Scope } from "#accounts/roles.ts";

export const unauthenticated = defineError(
  "unauthenticated",
  401,
  () =>
    "Send a valid API token as `Authorization: Bearer <token>`; the token is missing, unknown, " +
    "revoked or expired.",
);
export const originRefused = defineError(
  "origin_refused",
  403,
  () =>
    "A signed-in session works only from the console's own address; open the console there, or " +
    "use an API token.",
);
export const secretsHidden = defineError(
  "secrets_hidden",
  403,
  () =>
    "This operation returns a secret, and this token hides secrets; use a signed-in session, or a token created with secrets `shown`.",
);
export const missingScope = defineError("missing_scope", 403, (scope: Scope) => ({
  detail: `This token does not carry the scope ${scope}.`,
  meta: { scope },
}));
export const routeNotFound = defineError("not_found", 404, (suggestion?: string) =>
  suggestion === undefined
    ? "This address does not exist. /docs lists all addresses."
    : `This address does not exist; did you mean ${suggestion}?`,
);
export const methodNotAllowed = defineError("method_not_allowed", 405, (allowed: readonly string[]) => ({
  detail: `This address does not support this method; use ${allowed.join(", ")}.`,
  meta: { allowed },
}));
export const idempotencyConflict = defineError(
  "idempotency_conflict",
  409,
  () => "This Idempotency-Key was used with another body. Use a new key for a new request.",
);
export const idempotencyInProgress = defineError("idempotency_in_progress", 409, () => ({
  detail: "The first request with this Idempotency-Key is still running.",
  meta: { retry_after: 1 },
}));
export const badHandshake = defineError(
  "bad_handshake",
  400,
  () => "This is not a WebSocket handshake of version 13 (RFC 6455).",
);
export const lengthRequired = defineError(
  "length_required",
  411,
  () => "Send the size of the body in Content-Length.",
);
export const payloadTooLarge = defineError("payload_too_large", 413, (limitBytes: number) => ({
  detail:
    `The body is larger than the ${limitBytes} bytes that this operation accepts; send a smaller ` + "body.",
  meta: { limit_bytes: limitBytes },
}));
export const unsupportedMediaType = defineError(
  "unsupported_media_type",
  415,
  () => "Send the body as JSON in UTF-8, with `Content-Type: application/json`.",
);
export const rateLimited = defineError("rate_limited", 429, (retryAfterSeconds: number) => ({
  detail: `Too many requests with this token; retry after ${retryAfterSeconds} s.`,
  meta: { retry_after: retryAfterSeconds },
}));
/**
 * The limit of a client's address, for callers without a credential. The error has the same code as the limit of a
 * token.
 */
export const addressLimited = defineError("rate_limited", 429, (retryAfterSeconds: number) => ({
  detail: `Too many requests from this address; retry after ${retryAfterSeconds} s.`,
  meta: { retry_after: retryAfterSeconds },
}));

export const tooManyStreams = defineError("too_many_streams", 429, (limit: number) => ({
  detail: `${limit} streams are open, the maximum of your plan; close one first.`,
  meta: { limit, retry_after: 5 },
}));
export const internalError = defineError("internal_error", 500, (requestId: string) => ({
  detail: "The server failed. Send the request id to your operator.",
  meta: { request_id: requestId },
}));
export const unavailable = defineError("unavailable", 503, (why: string) => ({
  detail: why,
  meta: { retry_after: 2 },
}));
