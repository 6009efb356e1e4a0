import { defineError } from "#lib/errors.ts";

export const sessionNotFound = defineError("session_not_found", 404, () => "The agent has no such session.");
export const sessionEnded = defineError(
  "session_ended",
  410,
  () => "The session was ended. Invoke without `session_id` to start a new one.",
);
export const sessionCapReached = defineError("session_cap_reached", 409, (allowed: number) => ({
  detail: `The plan has at most ${allowed} live sessions; end some first.`,
  meta: { limit: "live_sessions", allowed },
}));
export const historyExists = defineError(
  "history_exists",
  409,
  () => "messages: the session has a history already; `messages` begin a new session only.",
);
