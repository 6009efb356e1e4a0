import { defineError } from "#lib/errors.ts";

export const commandNotFound = defineError("command_not_found", 404, () => "No such command.");

export const commandNotReading = defineError("command_not_reading", 409, (why: "ended" | "full") =>
  why === "ended"
    ? "The command accepts no more input: it ended, or its input was closed."
    : "The command did not read its input in time; part of it may have arrived.",
);

export const tooManyReaders = defineError(
  "too_many_readers",
  409,
  () => "16 readers follow this command already; end one of them, or poll the logs by offset.",
);

export const outputForgotten = defineError(
  "output_forgotten",
  410,
  () =>
    "The output was discarded: a sandbox keeps the output of its last 100 finished commands, up to 64 MiB in total.",
);
