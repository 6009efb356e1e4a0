/** One call of a tool that is a request. */
import type { App } from "#app.ts";
import { refusalOf } from "../connections/refusal.ts";
import { cutOff, resultMaxBytes } from "../tools/result.ts";
import type { ToolAnswer, ToolCall } from "../tools/tool.ts";
import { type Attempt, letIn } from "./let-in.ts";
import { requestOf, UnfitArguments } from "./request.ts";
import type { HttpTool } from "./schema.ts";
import type { ToolsetRow } from "./store.ts";
import type { Entry } from "./way-in.ts";

export async function callHttp(
  app: App,
  toolset: ToolsetRow,
  http: HttpTool,
  endUserId: string | null,
  call: ToolCall,
): Promise<ToolAnswer> {
  return letIn(app, toolset, { endUserId, call }, (way) => ask(toolset, http, way, call));
}

async function ask(toolset: ToolsetRow, http: HttpTool, way: Entry, call: ToolCall): Promise<Attempt> {
  const failed = (text: string): Attempt => ({ answer: { isOk: false, text } });
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
    if (response.ok) return { answer: { isOk: true, text } };
    return { ...failed(`HTTP ${response.status}: ${text}`), refusal: refusalOf(response) };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted) return failed(`The tool did not answer within ${call.timeoutMs / 1000} s.`);
    const { message } = error as Error;
    const why = error instanceof UnfitArguments ? message : `The tool can't be reached: ${message}`;
    return failed(way.hide(why).slice(0, 300));
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
