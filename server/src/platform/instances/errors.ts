import { defineError } from "#lib/errors.ts";

export const functionNotDeployed = defineError(
  "function_not_deployed",
  409,
  () => "The function was never deployed. Deploy it first.",
);

export const functionBusy = defineError("function_busy", 503, () => ({
  detail: "All instances of the function are busy, and none became free in time. Try again shortly.",
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
  (seconds: number) => `The function did not respond within ${seconds} s.`,
);

export const functionCrashed = defineError(
  "function_crashed",
  502,
  () => "The function's process ended during the request. See the function's logs for the cause.",
);

export const responseTooLarge = defineError(
  "response_too_large",
  502,
  (mib: number) => `The function's response is larger than ${mib} MiB; call its address instead.`,
);

/** A handler that could not be loaded. The message is for the owner, and contains the last output. */
export class HandlerFailed extends Error {
  override readonly name = "HandlerFailed";
}
