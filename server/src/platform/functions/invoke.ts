/**
 * Invokes a function through the API. The request is built here, and an instance serves it like a visitor's. The
 * response is returned as a whole. The call needs no key, and the handler receives none.
 */
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import { functionNotDeployed } from "../instances/errors.ts";
import { bodyTooLarge } from "./errors.ts";
import { getFunction } from "./functions.ts";
import type { FunctionResponse, FunctionRequest, FunctionParts } from "./parts.ts";
import type { InvokeRequest, InvokeResponse } from "./schema.ts";

/** Limit of a body in bytes, equal to that at the function's address. */
const maxBodyBytes = 6 * 1024 ** 2;

/**
 * Names of headers that the caller may not set. These headers belong to the connection, are set by the server only, or
 * contain the key, which the handler must not see.
 */
const ownHeaders = new Set([
  ..."connection expect host http2-settings keep-alive proxy-authenticate proxy-authorization".split(" "),
  ..."proxy-connection te trailer transfer-encoding upgrade content-length forwarded".split(" "),
  ..."x-api-key x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto".split(" "),
  ..."x-real-ip x-request-id".split(" "),
]);

export async function invokeFunction(
  app: Pick<App, "db" | "config">,
  parts: Pick<FunctionParts, "invoke">,
  actor: Actor,
  { id, input, signal }: { id: string; input: InvokeRequest; signal: AbortSignal },
): Promise<InvokeResponse> {
  const row = await getFunction(app, actor, id);
  if (row.live_version_id === null) throw functionNotDeployed();
  const host = `${row.name}.fn.${hostname(app.config.appsDomain)}`;
  return toAnswer(await parts.invoke(row.id, buildRequest(input, host), signal));
}

/** Returns the request to send. Pure function. Throws `payload_too_large`. */
export function buildRequest(input: InvokeRequest, host: string): FunctionRequest {
  const { body, type } = bodyOf(input);
  if (body.length > maxBodyBytes) throw bodyTooLarge(maxBodyBytes);
  const given = Object.entries(input.headers)
    .map(([name, value]) => [name.toLowerCase(), value] as const)
    .filter(([name]) => !ownHeaders.has(name) && !name.startsWith("x-kontor-"));
  return {
    method: input.method,
    path: pathOf(input),
    headers: {
      ...(type === null ? {} : { "content-type": type }),
      ...Object.fromEntries(given),
      host,
      "x-forwarded-host": host,
      "x-forwarded-proto": "https",
    },
    body,
  };
}

/** Returns the bytes of a body. Text is unchanged, and other values become JSON. */
function bodyOf({ body, body_base64 }: InvokeRequest): { body: Buffer; type: string | null } {
  if (body_base64 !== undefined)
    return { body: Buffer.from(body_base64, "base64"), type: "application/octet-stream" };
  if (body === undefined || body === null) return { body: Buffer.alloc(0), type: null };
  if (typeof body === "string") return { body: Buffer.from(body), type: "text/plain;charset=UTF-8" };
  return { body: Buffer.from(JSON.stringify(body)), type: "application/json" };
}

function pathOf({ path, query }: InvokeRequest): string {
  const pairs = Object.entries(query).flatMap(([name, value]) =>
    [value].flat().map((one): [string, string] => [name, String(one)]),
  );
  if (pairs.length === 0) return path;
  return `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams(pairs).toString()}`;
}

function toAnswer({
  status,
  headers,
  body,
  durationMs,
  coldStart,
  wakeMs,
}: FunctionResponse): InvokeResponse {
  const text = textOf(body);
  return {
    status,
    headers,
    body: text,
    body_base64: text === null ? body.toString("base64") : null,
    duration_ms: Math.round(durationMs * 100) / 100,
    cold_start: coldStart,
    wake_ms: wakeMs === null ? null : Math.round(wakeMs * 100) / 100,
  };
}

/** Returns the text of a body; null if the bytes are not valid UTF-8. The content type is not trusted. */
function textOf(body: Buffer): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  } catch {
    return null;
  }
}
