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
export const sessionFull = defineError("session_full", 409, (allowedMiB: number) => ({
  detail: `The session holds at most ${allowedMiB} MiB of what was said; invoke without \`session_id\` to start a new one.`,
  meta: { limit: "session_bytes", allowed: allowedMiB * 1024 ** 2 },
}));
export const historyExists = defineError(
  "history_exists",
  409,
  () => "messages: the session has a history already; `messages` begin a new session only.",
);
