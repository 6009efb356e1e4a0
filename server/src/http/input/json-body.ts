/** Accepts only JSON bodies. Errors never quote the body, because it may hold a secret. */
import type { FastifyInstance, FastifyRequest } from "fastify";
import { unsupportedMediaType } from "../errors.ts";
import { InvalidInput } from "./input-problems.ts";
import { exceededLimit } from "./json-limits.ts";

const decoder = new TextDecoder("utf-8", { fatal: true });

export function acceptOnlyJson(fastify: FastifyInstance): void {
  fastify.removeAllContentTypeParsers();
  fastify.addContentTypeParser(
    /^application\/([\w.-]+\+)?json\b/i,
    { parseAs: "buffer" },
    async ({ headers }: FastifyRequest, bytes: unknown) => {
      requireUtf8(headers["content-type"]);
      return parseJson(bytes as Buffer);
    },
  );
  // `curl -X POST` sends an empty form body. Such a request counts as a request without a body, not as a wrong type.
  fastify.addContentTypeParser("*", { parseAs: "buffer" }, async (_: unknown, bytes: unknown) => {
    if ((bytes as Buffer).length > 0) throw unsupportedMediaType();
    return undefined;
  });
}

/** JSON is UTF-8 (RFC 8259, 8.1). A body in another charset would be decoded to a wrong text. */
function requireUtf8(contentType = ""): void {
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/i.exec(contentType)?.[1];
  if (charset !== undefined && !/^(utf-?8|us-ascii)$/i.test(charset)) throw unsupportedMediaType();
}

function parseJson(bytes: Buffer): unknown {
  if (bytes.length === 0) return undefined;
  const excess = exceededLimit(bytes);
  if (excess !== undefined) throw invalidJson([], excess);
  const text = decode(bytes);
  try {
    return refuseUnusable(text, JSON.parse(text) as unknown);
  } catch (error) {
    if (error instanceof InvalidInput) throw error;
    const position = /at position (\d+)/.exec((error as Error).message)?.[1];
    throw position === undefined
      ? invalidJson([], "is not valid JSON")
      : invalidJson([Number(position)], `is not valid JSON, at character ${position}`);
  }
}

function decode(bytes: Buffer): string {
  try {
    return decoder.decode(bytes);
  } catch {
    throw invalidJson([], "is not valid UTF-8");
  }
}

/**
 * Refuses text that would change silently later. An unpaired surrogate is legal in JSON but not in UTF-8. Copies of an
 * object would lose the key `__proto__`. The text of such a body has an escape or that exact key, so most bodies are
 * not walked.
 */
function refuseUnusable(text: string, value: unknown): unknown {
  if (/\\u[dD][89a-fA-F]/.test(text) && !isWellFormed(value)) {
    throw invalidJson([], "has a text with an unpaired surrogate; send valid Unicode");
  }
  if (/"(__proto__|\\u005f)/i.test(text) && hasPrototypeKey(value))
    throw invalidJson([], 'has the key "__proto__", which is not allowed; rename it');
  return value;
}

function isWellFormed(value: unknown): boolean {
  if (typeof value === "string") return value.isWellFormed();
  if (typeof value !== "object" || value === null) return true;
  return Object.entries(value).every(([key, inner]) => key.isWellFormed() && isWellFormed(inner));
}

function hasPrototypeKey(value: unknown): boolean {
  if (typeof value !== "object" || value === null) return false;
  return Object.hasOwn(value, "__proto__") || Object.values(value).some(hasPrototypeKey);
}

function invalidJson(path: readonly number[], plain: string): InvalidInput {
  return new InvalidInput([
    { place: "body", path, type: "json_invalid", message: `JSON decode error: ${plain}`, plain },
  ]);
}
