/**
 * Turns every error into a response. A `DomainError` has its own status, code and sentence. Invalid input is rendered
 * in the shape of each API. Any other error is a fault of the server: the 500 response holds only the request id, and
 * the log line holds everything.
 */
import { DomainError } from "#lib/errors.ts";
import type { Api } from "./define-route.ts";
import { internalError, payloadTooLarge, unavailable, unsupportedMediaType } from "./errors.ts";
import { InvalidInput, type Problem } from "./input/input-problems.ts";

export interface RenderedError {
  status: number;
  headers: Record<string, string>;
  body: Record<string, unknown>;
  /** True for a fault of the server, which is logged with its cause. */
  isFault: boolean;
}

export function renderError(api: Api, error: unknown, requestId: string): RenderedError {
  const known = translate(error);
  if (known instanceof InvalidInput)
    return { ...invalidInput[api](known.problems), headers: {}, isFault: false };
  const refusal = known instanceof DomainError ? known : internalError(requestId);
  return {
    status: refusal.status,
    headers: headersOf(refusal),
    body: errorBody(refusal),
    // A 503 without a cause only means "retry later" and is not a fault.
    isFault: refusal.status >= 500 && (refusal.code === "internal_error" || refusal.cause !== undefined),
  };
}

/**
 * The documents call the sentence `detail`. `message` repeats the sentence under one name and type for all three APIs.
 */
export function errorBody({ detail, code, meta }: DomainError): Record<string, unknown> {
  return { detail, message: detail, code, ...meta };
}

function headersOf({ status, code, meta }: DomainError): Record<string, string> {
  const headers: Record<string, string> = {};
  if (typeof meta.retry_after === "number") headers["retry-after"] = String(Math.ceil(meta.retry_after));
  if (status === 401) headers["www-authenticate"] = 'Bearer realm="kontor"';
  if (code === "method_not_allowed") headers.allow = (meta.allowed as readonly string[]).join(", ");
  return headers;
}

/**
 * Converts errors of Fastify and PostgreSQL that mean a client error or a temporary failure. Returns other errors
 * unchanged.
 */
function translate(error: unknown): unknown {
  if (error instanceof DomainError || error instanceof InvalidInput) return error;
  const { code, statusCode, message, limitBytes } = (error ?? {}) as Record<string, unknown>;
  if (typeof code === "string") {
    const translated = byCode[code];
    if (translated) return translated(Number(limitBytes ?? 0));
    // Class 08: the connection failed. 57P0x: PostgreSQL is stopping or starting.
    if (/^(08|57P0)/.test(code))
      return unavailable("The database can't be reached at the moment; retry later.");
  }
  // pg-pool gives this error no code.
  if (error instanceof Error && message === "timeout exceeded when trying to connect") {
    return unavailable("Every database connection is busy at the moment; retry later.");
  }
  if (typeof statusCode === "number" && statusCode >= 400 && statusCode < 500) {
    return new InvalidInput([
      wholeBody("value_error", typeof message === "string" ? message : "is not valid"),
    ]);
  }
  return error;
}

const databaseUnavailable = (): unknown =>
  unavailable("The database can't be reached at the moment; retry later.");
/** PostgreSQL stores neither NUL nor a lone surrogate. Only a caller's text can hold one. */
const badText = (): unknown =>
  new InvalidInput([wholeBody("value_error", "has a text with NUL or an unpaired surrogate; remove it")]);

const byCode: Record<string, (limitBytes: number) => unknown> = {
  FST_ERR_CTP_BODY_TOO_LARGE: payloadTooLarge,
  FST_ERR_CTP_INVALID_MEDIA_TYPE: unsupportedMediaType,
  "22021": badText,
  "22P05": badText,
  ECONNREFUSED: databaseUnavailable,
  "53300": databaseUnavailable,
};

function wholeBody(type: string, plain: string): Problem {
  return { place: "body", path: [], type, message: plain, plain };
}

type Rendering = (problems: readonly Problem[]) => Pick<RenderedError, "status" | "body">;

const invalidInput: Record<Api, Rendering> = {
  platform: (problems) => ({
    status: 422,
    body: {
      detail: problems.map(({ place, path, message, type }) => ({
        loc: [place, ...path],
        msg: message,
        type,
      })),
      message: sentenceOf(problems),
      code: "validation_error",
    },
  }),
  sandbox: (problems) => ({ status: 400, body: plainBody(problems) }),
  agent: (problems) => ({
    status: 400,
    body: {
      ...plainBody(problems),
      pointer: pointerOf(problems[0]!),
      errors: problems.map((problem) => ({
        field: fieldOf(problem),
        message: problem.plain,
        pointer: pointerOf(problem),
      })),
    },
  }),
};

function plainBody(problems: readonly Problem[]): Record<string, unknown> {
  return {
    detail: `${fieldOf(problems[0]!)}: ${problems[0]!.plain}`,
    message: sentenceOf(problems),
    code: "invalid_request",
    errors: problems.map((problem) => ({ field: fieldOf(problem), message: problem.plain })),
  };
}

/** Names the first three problems, and the number of others. */
function sentenceOf(problems: readonly Problem[]): string {
  const named = problems.slice(0, 3).map((problem) => `${fieldOf(problem)}: ${problem.plain}`);
  const more = problems.length - named.length;
  return more > 0 ? `${named.join("; ")}; and ${more} more` : named.join("; ");
}

/** Formats a field as `files[2].path`. The whole body, and a position in its text, is called `body`. */
function fieldOf({ place, path, type }: Problem): string {
  if (type === "json_invalid") return place;
  const name = path.map((part) => (typeof part === "number" ? `[${part}]` : `.${String(part)}`)).join("");
  return name === "" ? place : name.replace(/^\./, "");
}

/** Formats a JSON pointer (RFC 6901). */
function pointerOf({ path, type }: Problem): string {
  if (type === "json_invalid") return "";
  return path.map((part) => `/${String(part).replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}
