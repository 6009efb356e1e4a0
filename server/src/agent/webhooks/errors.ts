import { defineError } from "#lib/errors.ts";

export const webhookNotFound = defineError("webhook_not_found", 404, () => "No such webhook.");
export const webhookLimitReached = defineError("webhook_limit_reached", 409, (allowed: number) => ({
  detail: `An agent has at most ${allowed} webhooks; delete one first.`,
  meta: { limit: "webhooks", allowed },
}));

// ---- errors of deliveries

/** The error does not reveal which part mismatched. */
export const signatureInvalid = defineError(
  "signature_invalid",
  401,
  () =>
    "The secret or the signature is missing or wrong. Send the webhook's secret as " +
    "`Authorization: Bearer <secret>`, or sign the body with it: `X-Service-Signature: " +
    "sha256=<hex>`, `X-Hub-Signature-256: sha256=<hex>`, or the headers of Standard Webhooks with " +
    "a correct clock.",
);
export const webhookDisabled = defineError(
  "webhook_disabled",
  409,
  () => "The webhook is disabled. Enable it with PATCH.",
);
export const dailyCapReached = defineError(
  "daily_cap_reached",
  429,
  (allowed: number, retryAfterSeconds: number) => ({
    detail: `The webhook's cap of ${allowed} runs today is reached; the next day begins at 00:00 UTC.`,
    meta: { limit: "daily_cap", allowed, retry_after: retryAfterSeconds },
  }),
);
export const inputEmpty = defineError(
  "input_empty",
  400,
  () =>
    "The rendered template is empty for this delivery; send the fields that it references, or " +
    "change the template.",
);
export const endUserInvalid = defineError("end_user_invalid", 400, () => ({
  detail:
    "The webhook's `end_user_id` template yields no valid id for this delivery. An id has 1 to " +
    "128 characters of A-Z, a-z, 0-9, . _ : @ and -, and is not `-` alone. Send the fields that " +
    "the template references, or change the template.",
}));
export const sessionKeyTooLong = defineError("session_key_too_long", 400, (limitBytes: number) => ({
  detail:
    `The key that the webhook's \`session\` template yields exceeds ${limitBytes} bytes; ` +
    "reference a shorter field.",
  meta: { limit_bytes: limitBytes },
}));
export const inputTooLarge = defineError("input_too_large", 413, (limitBytes: number) => ({
  detail: `The rendered template exceeds ${limitBytes} bytes; reference fewer body fields.`,
  meta: { limit_bytes: limitBytes },
}));
