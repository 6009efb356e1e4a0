import { defineError } from "#lib/errors.ts";

export const webhookNotFound = defineError("webhook_not_found", 404, () => "No such webhook.");

export const webhookLimitReached = defineError("webhook_limit_reached", 409, (allowed: number) => ({
  detail: `An account has at most ${allowed} webhooks; delete one first.`,
  meta: { limit: "webhooks_max", allowed },
}));

export const webhookUrlRefused = defineError("invalid_request", 400, (why: string) => `url: ${why}`);
