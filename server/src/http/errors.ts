/** The ways HTTP itself can refuse, before a verb of ours is reached. Each API's document lists those that apply. */
import { defineError } from "#lib/errors.ts";
import type { Scope } from "#accounts/actor.ts";

export const unauthenticated = defineError(
  "unauthenticated",
  401,
  () =>
    "Send a valid API token as `Authorization: Bearer <token>`; this one is missing, unknown, revoked or expired.",
);
export const originRefused = defineError(
  "origin_refused",
  403,
  () => "A signed-in session may only be used from the console's own address.",
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
    ? "There is nothing at this address. The addresses are listed at /docs."
    : `There is nothing at this address; did you mean ${suggestion}?`,
);
export const methodNotAllowed = defineError("method_not_allowed", 405, (allowed: readonly string[]) => ({
  detail: `This address takes ${allowed.join(", ")}.`,
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
  () => "Say the size of the body in Content-Length.",
);
export const payloadTooLarge = defineError("payload_too_large", 413, (limitBytes: number) => ({
  detail: `The body is larger than the ${limitBytes} bytes this call takes.`,
  meta: { limit_bytes: limitBytes },
}));
export const unsupportedMediaType = defineError(
  "unsupported_media_type",
  415,
  () => "Send the body as JSON in UTF-8, with `Content-Type: application/json`.",
);
export const rateLimited = defineError("rate_limited", 429, (retryAfterSeconds: number) => ({
  detail: `Too many requests with this token; try again in ${retryAfterSeconds} s.`,
  meta: { retry_after: retryAfterSeconds },
}));
/** The same code for a caller without a credential. */
export const addressLimited = defineError("rate_limited", 429, (retryAfterSeconds: number) => ({
  detail: `Too many requests from this address; try again in ${retryAfterSeconds} s.`,
  meta: { retry_after: retryAfterSeconds },
}));

export const tooManyStreams = defineError("too_many_streams", 429, (limit: number) => ({
  detail: `${limit} streams are open already, the most your plan allows; close one first.`,
  meta: { limit, retry_after: 5 },
}));
export const internalError = defineError("internal_error", 500, (requestId: string) => ({
  detail: "Something went wrong on our side. Quote the request id when you ask about it.",
  meta: { request_id: requestId },
}));
export const unavailable = defineError("unavailable", 503, (why: string) => ({
  detail: why,
  meta: { retry_after: 2 },
}));
