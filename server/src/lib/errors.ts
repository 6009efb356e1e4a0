/**
 * Declares the errors of the whole server. A folder declares its errors as rows with `defineError`. The error
 * renderers, the OpenAPI `responses` and the docs read these rows, so every error that the server throws is declared.
 *
 * `detail` goes to the caller and must never hold a secret. `cause` goes to the log and is never rendered.
 */

export interface ErrorRow<Args extends unknown[] = never[]> {
  (...args: Args): DomainError;
  readonly code: string;
  readonly status: number;
}

export class DomainError extends Error {
  readonly code: string;
  readonly status: number;
  /** Extra fields of the body, such as `retry_after` or `limit`. */
  readonly meta: Record<string, unknown>;

  constructor(
    row: { code: string; status: number },
    detail: string,
    meta: Record<string, unknown>,
    cause?: unknown,
  ) {
    super(detail, { cause });
    this.name = "DomainError";
    this.code = row.code;
    this.status = row.status;
    this.meta = meta;
  }

  get detail(): string {
    return this.message;
  }
}

/** Result of a row's builder: the sentence alone, or the sentence with body fields and a cause. */
type ErrorContent = string | { detail: string; meta?: Record<string, unknown>; cause?: unknown };

/** Declares an error. A call of the row creates the error to throw. */
export function defineError<Args extends unknown[]>(
  code: string,
  status: number,
  build: (...args: Args) => ErrorContent,
): ErrorRow<Args> {
  const make = (...args: Args): DomainError => {
    const built = build(...args);
    return typeof built === "string"
      ? new DomainError({ code, status }, built, {})
      : new DomainError({ code, status }, built.detail, built.meta ?? {}, built.cause);
  };
  return Object.assign(make, { code, status });
}
