/** Failures of model calls, and whether a retry may help. */
import { APICallError } from "@ai-sdk/provider";
import { AddressError } from "#lib/network/checked-lookup.ts";
import { InvalidAnswer } from "./fetch.ts";

export class ModelFailure extends Error {
  override readonly name = "ModelFailure";
  /**
   * `overloaded`: retry after a pause. `away`: retry. `too_long`: the prompt exceeds the model's context. `refused`: a
   * retry does not help.
   */
  readonly kind: "overloaded" | "away" | "too_long" | "refused";
  readonly retryAfterMs: number | null;
  /** True if a server responded with an HTTP error. The address is then valid. */
  readonly isFromServer: boolean;
  /** HTTP status of the response. Undefined if there was no response. */
  readonly status: number | undefined;
  /** Timeout in seconds after which a silent call failed. Undefined for other failures. */
  readonly silentSeconds: number | undefined;

  constructor(
    kind: ModelFailure["kind"],
    message: string,
    {
      retryAfterMs = null,
      isFromServer = false,
      status,
      silentSeconds,
    }: {
      retryAfterMs?: number | null;
      isFromServer?: boolean;
      status?: number;
      silentSeconds?: number;
    } = {},
  ) {
    super(message);
    this.kind = kind;
    this.retryAfterMs = retryAfterMs;
    this.isFromServer = isFromServer;
    this.status = status;
    this.silentSeconds = silentSeconds;
  }
}

/** Returns true for a status that is worth a retry: timeout, conflict, too early, or a server error. */
const isPassing = (status: number): boolean => [408, 409, 425].includes(status) || status >= 500;

/** Returns true for a status of an overloaded provider. OpenAI also sends 503, Anthropic 529. */
const isOverload = (status: number): boolean => [429, 503, 529].includes(status);

/**
 * Converts the error of a call to a `ModelFailure`. Removes `secret` from texts of the server, which may repeat the
 * secret.
 */
export function explain(error: unknown, secret: string): ModelFailure {
  if (error instanceof ModelFailure) return error;
  if (error instanceof AddressError)
    return new ModelFailure("refused", `The model can't be called. ${error.message}`);
  if (APICallError.isInstance(error) && error.statusCode !== undefined && error.statusCode !== 200) {
    const { statusCode, responseHeaders } = error;
    const said = `The model's server returned ${statusCode}: ${tidy(error.message, secret)}`;
    if ([400, 413, 422].includes(statusCode) && isTooLong(`${error.message} ${error.responseBody ?? ""}`))
      return new ModelFailure("too_long", said, { status: statusCode });
    const kind = isOverload(statusCode) ? "overloaded" : isPassing(statusCode) ? "away" : "refused";
    return new ModelFailure(kind, said, {
      retryAfterMs: retryAfter(responseHeaders),
      isFromServer: true,
      status: statusCode,
    });
  }
  const cause = causeOf(error);
  if (cause instanceof InvalidAnswer)
    return new ModelFailure("refused", `The model's answer was rejected: ${cause.message}`);
  const { code, message } = (cause ?? {}) as NodeJS.ErrnoException;
  const why = typeof message === "string" ? tidy(message, secret) : "";
  return new ModelFailure(
    isTooLong(why) ? "too_long" : "away",
    `Reading the model's answer failed${code ? ` (${tidy(String(code), secret)})` : ""}: ${why}`,
  );
}

/** Returns the cause of an error. The SDK wraps errors of the connection in an error of its own. */
function causeOf(error: unknown): unknown {
  return APICallError.isInstance(error) && error.cause instanceof Error ? causeOf(error.cause) : error;
}

/**
 * Returns true for the errors of OpenAI, Anthropic, Mistral, vLLM, llama.cpp and Ollama about a prompt that exceeds the
 * context.
 */
function isTooLong(text: string): boolean {
  return /context[ _](length|window|size|limit)|(prompt|input) (is|length is) too long|request_too_large/i.test(
    text.slice(0, 4096),
  );
}

function tidy(message: string, secret: string): string {
  const text = secret.length >= 4 ? message.replaceAll(secret, "[key]") : message;
  return text.replaceAll("\0", "").toWellFormed().slice(0, 300);
}

/**
 * Returns the milliseconds until the time in the `Retry-After` header, which has seconds or an HTTP date (RFC 9110,
 * 10.2.3).
 */
export function retryAfter(headers: Record<string, string> | undefined, now = Date.now()): number | null {
  const value = headers?.["retry-after"]?.trim();
  if (!value) return null;
  const milliseconds = /^\d+(?:\.\d+)?$/.test(value)
    ? Number(value) * 1000
    : (value.endsWith("GMT") ? Date.parse(value) : Number.NaN) - now;
  return Number.isFinite(milliseconds) ? Math.max(0, milliseconds) : null;
}
