/** How a run's work says that it can't go on; becomes the run's `error_code` and `error_message`. */
import type { RunErrorCode } from "./states.ts";

export class RunFailure extends Error {
  override readonly name = "RunFailure";
  readonly code: RunErrorCode;

  constructor(code: RunErrorCode, message: string) {
    super(message);
    this.code = code;
  }
}
