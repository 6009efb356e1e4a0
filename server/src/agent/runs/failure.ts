/** How a run's work says that it can't go on; becomes the run's `error_code` and `error_message`. */
import { DomainError } from "#lib/errors.ts";
import { sessionFull } from "../sessions/errors.ts";
import type { RunErrorCode } from "./states.ts";

export class RunFailure extends Error {
  override readonly name = "RunFailure";
  readonly code: RunErrorCode;

  constructor(code: RunErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}

/** No model of the agent takes so long a conversation. */
export class PromptTooLong extends RunFailure {
  constructor(message: string) {
    super("model_error", message);
  }
}

/** What the run's owner is told of it. */
export function failureOf(error: unknown): RunFailure {
  if (error instanceof RunFailure) return error;
  if (error instanceof DomainError && error.code === sessionFull.code)
    return new RunFailure("limit_tokens", error.detail);
  return new RunFailure("internal", "Something went wrong on our side.");
}
