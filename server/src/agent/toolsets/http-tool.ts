/** One call of a tool that is a request. */
import type { App } from "#app.ts";
import { cutOff, resultMaxBytes } from "../tools/result.ts";
import type { ToolAnswer, ToolCall } from "../tools/tool.ts";
import { requestOf, UnfitArguments } from "./request.ts";
import type { HttpTool } from "./schema.ts";
import { toldToSignIn } from "./sign-in.ts";
import type { ToolsetRow } from "./store.ts";
import { type Entry, wayIn } from "./way-in.ts";

export async function callHttp(
  app: App,
  toolset: ToolsetRow,
  http: HttpTool,
  endUserId: string | null,
  call: ToolCall,
): Promise<ToolAnswer> {
  const way = await wayIn(app, toolset, endUserId);
  if (way.kind !== "open") return toldToSignIn(app, toolset, endUserId, way, call);
  const timeout = AbortSignal.timeout(call.timeoutMs);
  try {
    const headers = { ...(await lettingIn(way)), "idempotency-key": call.id };
    const request = requestOf(http, { url: toolset.url, headers }, call.values);
    const response = await call.fetch(request.url, {
      method: request.method,
      headers: request.headers,
      ...(request.body === undefined ? {} : { body: request.body }),
      signal: AbortSignal.any([call.signal, timeout]),
    });
    const text = await readText(response, way.hide);
    if (response.ok) return { isOk: true, text };
    // Whoever signed in is asked to again, at the next call.
    if (response.status === 401) await way.refused();
    return { isOk: false, text: `HTTP ${response.status}: ${text}` };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted)
      return { isOk: false, text: `The tool did not answer within ${call.timeoutMs / 1000} s.` };
    const { message } = error as Error;
    const why = error instanceof UnfitArguments ? message : `The tool can't be reached: ${message}`;
    return { isOk: false, text: way.hide(why).slice(0, 300) };
  }
}

async function lettingIn({ address: { headers, token } }: Entry): Promise<Record<string, string>> {
  const bearer = await token?.();
  return bearer === undefined ? { ...headers } : { ...headers, authorization: `Bearer ${bearer}` };
}

/** More than any secret has: one that begins before the cut is read whole, so that it is found. */
const secretMaxBytes = 16 * 1024;

async function readText(response: Response, hide: (text: string) => string): Promise<string> {
  const readMaxBytes = resultMaxBytes + secretMaxBytes;
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response.body ?? []) {
    pieces.push(piece as Uint8Array);
    bytes += (piece as Uint8Array).length;
    if (bytes > readMaxBytes) break;
  }
  const read = Buffer.concat(pieces).subarray(0, readMaxBytes);
  const text = hide(new TextDecoder().decode(read).replaceAll("\0", "\uFFFD"));
  if (bytes <= readMaxBytes) return cutOff(text);
  // The end may hold half a secret, however much shorter those before it became.
  const safe = Buffer.from(text).subarray(0, -secretMaxBytes).subarray(0, resultMaxBytes);
  return `${new TextDecoder().decode(safe)}\n[cut off after ${resultMaxBytes} bytes]`;
}
