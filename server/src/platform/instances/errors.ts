import { defineError } from "#lib/errors.ts";

export const functionNotDeployed = defineError(
  "function_not_deployed",
  409,
  () => "Nothing of this function is deployed yet. Deploy it first.",
);

export const functionBusy = defineError("function_busy", 503, () => ({
  detail: "All instances of the function are at work, and none came free in time. Try again shortly.",
  meta: { retry_after: 2 },
}));

export const functionUnavailable = defineError(
  "function_unavailable",
  503,
  (why: string, cause?: unknown) => ({
    detail: `The function could not be started: ${why}`,
    meta: { retry_after: 5 },
    cause,
  }),
);

export const functionTimeout = defineError(
  "function_timeout",
  504,
  (seconds: number) => `The function did not answer within ${seconds} s.`,
);

export const functionCrashed = defineError(
  "function_crashed",
  502,
  () => "The function's process ended while it answered. Its logs say more.",
);

export const responseTooLarge = defineError(
  "response_too_large",
  502,
  (mib: number) => `The function's answer is larger than ${mib} MiB; ask it at its address instead.`,
);

/** The handler did not come up; the message is for its owner, with what it said last. */
export class HandlerFailed extends Error {
  override readonly name = "HandlerFailed";
}
