/** What a person should read instead of a stack trace: what went wrong, and what to do about it. */
export class Failure extends Error {
  readonly hint: string | undefined;
  readonly exitCode: number;

  constructor(message: string, options: { hint?: string; exitCode?: number } = {}) {
    super(message);
    this.name = "Failure";
    this.hint = options.hint;
    this.exitCode = options.exitCode ?? 1;
  }
}
