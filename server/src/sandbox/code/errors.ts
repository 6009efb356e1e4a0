import { defineError } from "#lib/errors.ts";

export const interpreterUnavailable = defineError(
  "interpreter_unavailable",
  409,
  () => "The sandbox's template has no code interpreter. Create one from code-interpreter.",
);

export const interpreterOutdated = defineError(
  "interpreter_outdated",
  409,
  () =>
    "The sandbox's code interpreter is too old for bash cells and `env`. Create a new sandbox; rebuild your own template first.",
);

export const contextNotFound = defineError("context_not_found", 404, () => "No such context.");

export const contextBusy = defineError("context_busy", 409, () => ({
  detail:
    "32 cells wait in this context already. Wait for them, or use another context: contexts run side by side.",
  meta: { retry_after: 1 },
}));

export const contextLimitReached = defineError("context_limit_reached", 409, () => ({
  detail: "A sandbox has at most 20 contexts. Delete one first.",
  meta: { limit: "contexts", allowed: 20 },
}));

export const interpreterFailed = defineError("interpreter_failed", 503, (cause: unknown) => ({
  detail: "The sandbox's code interpreter sent an invalid response. Try again.",
  meta: { retry_after: 1 },
  cause,
}));
