/** An error with a cause and a cure for the operator. The error is printed without a stack. */
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
