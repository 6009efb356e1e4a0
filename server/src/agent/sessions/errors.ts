import { defineError } from "#lib/errors.ts";

export const sessionNotFound = defineError("session_not_found", 404, () => "The agent has no such session.");
export const sessionEnded = defineError(
  "session_ended",
  410,
  () => "The session was ended. Invoke without `session_id` to start a new one.",
);
export const sessionCapReached = defineError("session_cap_reached", 409, (allowed: number) => ({
  detail: `The plan allows ${allowed} live sessions, and none of them is idle. End a session first.`,
  meta: { limit: "live_sessions", allowed },
}));
export const sessionFull = defineError("session_full", 409, (allowedMiB: number) => ({
  detail: `The session's messages would exceed ${allowedMiB} MiB. Invoke without \`session_id\` to start a new session.`,
  meta: { limit: "session_bytes", allowed: allowedMiB * 1024 ** 2 },
}));
export const historyExists = defineError(
  "history_exists",
  409,
  () => "`messages` is only for a new session. Leave out `messages` or `session_id`.",
);
