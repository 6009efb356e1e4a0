/**
 * One kind of refusal for the whole server. A folder declares the ways it can say no as rows with `defineError`;
 * the rows feed the error renderers, OpenAPI `responses` and the docs, so nothing is thrown that is not declared.
 *
 * `detail` is for the caller and must never hold a secret; `cause` is for the log and is never rendered.
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

/** What a row's builder may return: the sentence alone, or with body fields and a cause. */
type Built = string | { detail: string; meta?: Record<string, unknown>; cause?: unknown };

/** Declares one way to refuse; calling the row makes the error to throw. */
export function defineError<Args extends unknown[]>(
  code: string,
  status: number,
  build: (...args: Args) => Built,
): ErrorRow<Args> {
  const make = (...args: Args): DomainError => {
    const built = build(...args);
    return typeof built === "string"
      ? new DomainError({ code, status }, built, {})
      : new DomainError({ code, status }, built.detail, built.meta ?? {}, built.cause);
  };
  return Object.assign(make, { code, status });
}
