/** One call of a tool that is a request. */
import type { App } from "#app.ts";
import { refusalOf } from "../connections/refusal.ts";
import { cutOff, hide, resultMaxBytes } from "../tools/result.ts";
import type { ToolAnswer, ToolCall } from "../tools/tool.ts";
import { openHeaders } from "./headers.ts";
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
  const own = openHeaders(app, toolset).get(http.name) ?? {};
  return letIn(app, toolset, { endUserId, call }, (way) => ask({ toolset, http, own }, way, call));
}

interface Asked {
  toolset: ToolsetRow;
  http: HttpTool;
  /** Headers of this tool. */
  own: Readonly<Record<string, string>>;
}

async function ask({ toolset, http, own }: Asked, way: Entry, call: ToolCall): Promise<Attempt> {
  const hideAll = (text: string) => secretsIn(own).reduce(hide, way.hide(text));
  const failed = (text: string): Attempt => ({ answer: { isOk: false, text } });
  const timeout = AbortSignal.timeout(call.timeoutMs);
  try {
    const headers = { ...(await lettingIn(way)), "idempotency-key": call.id };
    const tool = { ...http, headers: own };
    const request = requestOf(tool, { url: toolset.url, headers }, call.values);
    const response = await call.fetch(request.url, {
      method: request.method,
      headers: request.headers,
      ...(request.body === undefined ? {} : { body: request.body }),
      signal: AbortSignal.any([call.signal, timeout]),
    });
    const text = await readText(response, hideAll);
    if (response.ok) return { answer: { isOk: true, text } };
    const to = response.status < 400 ? response.headers.get("location") : null;
    const redirect = to === null ? "" : `redirects to ${hideAll(to)}, which is not followed. `;
    return { ...failed(`HTTP ${response.status}: ${redirect}${text}`), refusal: refusalOf(response) };
  } catch (error) {
    call.signal.throwIfAborted();
    if (timeout.aborted) return failed(`The tool did not answer within ${call.timeoutMs / 1000} s.`);
    const { message } = error as Error;
    const why = error instanceof UnfitArguments ? message : `The tool can't be reached: ${message}`;
    return failed(hideAll(why).slice(0, 300));
  }
}

async function lettingIn({ address: { headers, token } }: Entry): Promise<Record<string, string>> {
  const bearer = await token?.();
  return bearer === undefined ? { ...headers } : { ...headers, authorization: `Bearer ${bearer}` };
}

/** Headers whose values are not secret. Hiding them would remove ordinary words from results. */
const plainHeaders = /^(accept(-.*)?|cache-control|content-type|user-agent|prefer)$/i;

/** Lists the forms in which a server may echo the values, also without a scheme such as `Bearer`. */
function secretsIn(headers: Readonly<Record<string, string>>): string[] {
  return Object.entries(headers)
    .filter(([name, value]) => !plainHeaders.test(name) && value.length >= 8)
    .flatMap(([, value]) => [value, ...(/^[A-Za-z]+ +(\S{8,})$/.exec(value)?.slice(1) ?? [])]);
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
