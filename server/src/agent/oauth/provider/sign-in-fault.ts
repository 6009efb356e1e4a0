/** Why nobody can be signed in, or nothing newer be had. Its message may be shown to anybody: no answer is repeated in it. */
export class SignInFault extends Error {
  override readonly name = "SignInFault";
  /** As OAuth names errors (`invalid_grant`), where one was answered. */
  readonly code: string | null;

  constructor(message: string, options: { code?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.code = options.code ?? null;
  }
}
