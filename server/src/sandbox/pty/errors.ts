import { defineError } from "#lib/errors.ts";

export const ptyNotFound = defineError("pty_not_found", 404, () => "No such terminal.");

export const tooManyViewers = defineError(
  "too_many_viewers",
  409,
  () => "16 connections show this terminal already; end one of them.",
);

export const badMessage = defineError(
  "invalid_message",
  400,
  () => 'A text message here is {"kind": "resize", "cols": …, "rows": …}; send keys as binary messages.',
);
