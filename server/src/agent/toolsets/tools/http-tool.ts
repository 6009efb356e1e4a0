/** Executes a call of an HTTP tool. */
import type { App } from "#app.ts";
import { parseRefusal } from "#agent/oauth/provider/refusal.ts";
import { pictureMaxBytes, resultOf, toPicture } from "#agent/tools/pictures.ts";
import { cutOff, hide, joinEnds, resultMaxBytes } from "#agent/tools/result.ts";
import type { ToolResult, ToolCall } from "#agent/tools/tool.ts";
import { openHeaders } from "../calls/headers.ts";
import { type Attempt, callAuthorized } from "../calls/authorized-call.ts";
import { buildRequest, UnfitArguments } from "../calls/request.ts";
import type { HttpTool } from "./tool-schema.ts";
import type { ToolsetRow } from "../store.ts";
import type { CallCredentials } from "../calls/call-credentials.ts";

export async function callHttp(
  app: App,
  toolset: ToolsetRow,
  http: HttpTool,
  endUserId: string | null,
  call: ToolCall,
): Promise<ToolResult> {
  const own = openHeaders(app, toolset).get(http.name) ?? {};
  return callAuthorized(app, toolset, { endUserId, call }, (way) => ask({ toolset, http, own }, way, call));
}

interface HttpToolCall {
  toolset: ToolsetRow;
  http: HttpTool;
  /** Headers of the called tool. */
  own: Readonly<Record<string, string>>;
}

async function ask(
  { toolset, http, own }: HttpToolCall,
  way: CallCredentials,
  call: ToolCall,
): Promise<Attempt> {
  const hideAll = (text: string) => secretsIn(own).reduce(hide, way.hide(text));
  const failure = (text: string): Attempt => ({ answer: { isOk: false, text } });
  const timeout = AbortSignal.timeout(call.timeoutMs);
  try {
    const headers = { ...(await lettingIn(way)), "idempotency-key": call.id };
    const tool = { ...http, headers: own };
    const request = buildRequest(tool, { url: toolset.url, headers }, call.values);
    const response = await call.fetch(request.url, {
      method: request.method,
      headers: request.headers,
      ...(request.body === undefined ? {} : { body: request.body }),
      signal: AbortSignal.any([call.signal, timeout]),
    });
    if (response.ok) return { answer: { isOk: true, ...(await read(response, hideAll)) } };
    const { text } = await read(response, hideAll);
    const to = response.status < 400 ? response.headers.get("location") : null;
    const redirect = to === null ? "" : `redirects to ${hideAll(to)}, which is not followed. `;
    return { ...failure(`HTTP ${response.status}: ${redirect}${text}`), refusal: parseRefusal(response) };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted) return failure(`The tool did not respond within ${call.timeoutMs / 1000} s.`);
    const { message } = error as Error;
    const why = error instanceof UnfitArguments ? message : `The tool can't be reached: ${message}`;
    return failure(hideAll(why).slice(0, 300));
  }
}

async function lettingIn({ address: { headers, token } }: CallCredentials): Promise<Record<string, string>> {
  const bearer = await token?.();
  return bearer === undefined ? { ...headers } : { ...headers, authorization: `Bearer ${bearer}` };
}

/** Headers whose values are not secret. Hiding them would remove ordinary words from results. */
const plainHeaders = /^(accept(-.*)?|cache-control|content-type|user-agent|prefer)$/i;

/**
 * Returns the forms in which a server may echo the header values, including the value without a scheme such as
 * `Bearer`.
 */
function secretsIn(headers: Readonly<Record<string, string>>): string[] {
  return Object.entries(headers)
    .filter(([name, value]) => !plainHeaders.test(name) && value.length >= 8)
    .flatMap(([, value]) => [value, ...(/^[A-Za-z]+ +(\S{8,})$/.exec(value)?.slice(1) ?? [])]);
}

/**
 * Maximum length of a secret, in bytes. The read continues this far beyond the cut, so that a secret across the cut is
 * found.
 */
const secretMaxBytes = 16 * 1024;

/** Maximum number of bytes that are read of a body. The end of a longer body is not known. */
const readMaxBytes = 16 * 1024 ** 2;
const endMaxBytes = resultMaxBytes + secretMaxBytes;

async function read(response: Response, hide: (text: string) => string): Promise<Omit<ToolResult, "isOk">> {
  const isPicture = /^image\/(png|jpeg|gif|webp)\b/i.test(response.headers.get("content-type") ?? "");
  const body = await readBody(response, isPicture ? pictureMaxBytes : endMaxBytes);
  if (!isPicture) return { text: textOf(body, hide) };
  const picture = body.bytes > pictureMaxBytes ? undefined : toPicture(body.head);
  const bytes = body.isWhole ? `${body.bytes}` : `more than ${readMaxBytes}`;
  return picture ? resultOf([picture], hide) : { text: `[image of ${bytes} bytes, left out]` };
}

interface Body {
  /** First and last bytes of the body. If the body is short enough, each contains the whole body. */
  head: Buffer;
  tail: Buffer;
  bytes: number;
  /** True if the whole body was read. False if the body is longer than the maximum. */
  isWhole: boolean;
}

async function readBody(response: Response, headMaxBytes: number): Promise<Body> {
  const head: Buffer[] = [];
  let tail: Buffer[] = [];
  let [headBytes, tailBytes, bytes] = [0, 0, 0];
  for await (const piece of (response.body ?? []) as AsyncIterable<Uint8Array>) {
    const chunk = Buffer.from(piece);
    bytes += chunk.length;
    if (bytes > readMaxBytes) break;
    if (headBytes < headMaxBytes) {
      head.push(chunk.subarray(0, headMaxBytes - headBytes));
      headBytes += Math.min(chunk.length, headMaxBytes - headBytes);
    }
    tail.push(chunk);
    tailBytes += chunk.length;
    // The tail is trimmed rarely, because each trim copies the pieces.
    if (tailBytes > 2 * endMaxBytes) {
      tail = [Buffer.concat(tail).subarray(-endMaxBytes)];
      tailBytes = endMaxBytes;
    }
  }
  return {
    head: Buffer.concat(head),
    tail: Buffer.concat(tail).subarray(-endMaxBytes),
    bytes,
    isWhole: bytes <= readMaxBytes,
  };
}

function textOf({ head, tail, bytes, isWhole }: Body, hide: (text: string) => string): string {
  const decode = (part: Buffer) => hide(new TextDecoder().decode(part).replaceAll("\0", "\uFFFD"));
  if (isWhole && bytes <= head.length) return cutOff(decode(head));
  // The cut may split a secret, and the replacement of whole secrets misses its parts.
  const first = Buffer.from(decode(head)).subarray(0, -secretMaxBytes);
  const last = isWhole ? Buffer.from(decode(tail)).subarray(secretMaxBytes) : Buffer.alloc(0);
  return joinEnds(first, last, isWhole ? bytes - resultMaxBytes : undefined);
}
