/**
 * Reason why a sign-in or a token refresh fails. Every caller may see the message, because the message repeats no part
 * of a response.
 */
export class SignInFault extends Error {
  override readonly name = "SignInFault";
  /** OAuth error code, such as `invalid_grant`. Null if the provider returned none. */
  readonly code: string | null;

  constructor(message: string, options: { code?: string; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? {} : { cause: options.cause });
    this.code = options.code ?? null;
  }
}
