/**
 * Functions as sites: `<name>.fn.<domain>`. The key is checked before any instance starts. A request to a sleeping
 * function waits with its body unread, and fails only if no instance is ready in time. Errors of the ingress have the
 * shape of functions' own errors: `{error: {code, message, request_id}}`.
 *
 * The ingress checks a function's key and hides it from the handler. A machine that disappears before anything reached
 * it costs another look-up, but fails no request.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingMessage } from "node:http";
import { ConcurrencyLimit } from "../proxy/concurrency-limit.ts";
import { NoResponse } from "../proxy/forward.ts";
import { ownHeaders, toGuest, toVisitor } from "../proxy/headers.ts";
import { pathOf } from "./hosts.ts";
import { proxyRequest, type Visit } from "../proxy/proxy-request.ts";
import { ExchangeTimeouts } from "../proxy/exchange-timeouts.ts";
import { requestIdOf } from "../request-id.ts";
import type { Site, Visitors } from "./site.ts";
import type { Upstreams } from "./upstreams.ts";

/** A function, found by its name. */
export interface FunctionRoute {
  functionId: string;
  isDeployed: boolean;
  /** SHA-256 of the function's key. Null for a public function. */
  keyHash: Buffer | null;
}

/** A slot on an instance, until it is released. */
export interface FunctionLease {
  machine: string;
  port: number;
  /** Timeout for sending the request, and again for the whole response after it. */
  timeoutMs: number;
  release(): void;
  /** Reports that nothing could be sent, or that no response arrived. Resolves when a retry is useful. */
  reportGone(): Promise<void>;
  /** Reports that the instance got the request, but did not respond in time. */
  reportStuck(): void;
}

/** Functions that the ingress calls to find and enter instances, and to report responses. */
export interface Functions {
  /** Reads memory only. */
  find(name: string): FunctionRoute | undefined;
  /** Resolves when an instance has a free slot. Fails with errors that have a `code` and a `status`. */
  acquire(functionId: string, signal: AbortSignal): Promise<FunctionLease>;
  /** Reports a response to a visitor. `ms` is the time from the request's headers to the response's headers. */
  recordResponse(functionId: string, seen: { status: number; ms: number }): void;
}

/** Maximum of attempts for one request, because an instance may disappear before the request is sent. */
const attempts = 8;
/** Limit of requests in flight, including requests that wait for an instance. */
const maxPerFunction = 2_000;
const maxInAll = 8_000;
const maxBodyBytes = 6 * 1024 ** 2;
/** Status that is counted when a visitor disconnects before the response, as in nginx. */
const disconnectedStatus = 499;

const refusals = {
  not_found: { status: 404, message: "This address does not exist." },
  function_not_deployed: { status: 404, message: "This function has no deployment yet; deploy it first." },
  unauthorized: {
    status: 401,
    message:
      "This function requires its key: send it in the header X-Api-Key, or as Authorization: " + "Bearer.",
  },
  payload_too_large: { status: 413, message: "The body is larger than 6 MiB; send a smaller body." },
  body_too_slow: { status: 408, message: "The body of the request did not arrive in time; send it again." },
  upgrade_not_supported: {
    status: 501,
    message: "A function does not accept WebSockets; use an app for them.",
  },
  account_suspended: { status: 503, message: "The account that owns this function is suspended." },
  function_busy: { status: 503, message: "Too many requests are in flight; retry shortly." },
  function_unavailable: { status: 503, message: "The function could not start; read its logs." },
  function_crashed: { status: 502, message: "The function's process ended before its response." },
  function_timeout: { status: 504, message: "The function did not respond in time." },
} as const;
type RefusalCode = keyof typeof refusals;

class FunctionError extends Error {
  override readonly name = "Refused";
  readonly code: RefusalCode;

  constructor(code: RefusalCode, options?: ErrorOptions) {
    super(code, options);
    this.code = code;
  }
}

export class FunctionSites {
  readonly #domain: string;
  readonly #functions: Functions;
  readonly #upstreams: Upstreams;
  readonly #bounds: ConcurrencyLimit;

  /** `domain` has no port. */
  constructor(options: {
    domain: string;
    functions: Functions;
    upstreams: Upstreams;
    /** Limits for tests; the server uses the defaults. */
    limits?: { perFunction?: number };
  }) {
    this.#domain = `.fn.${options.domain}`;
    this.#functions = options.functions;
    this.#upstreams = options.upstreams;
    this.#bounds = new ConcurrencyLimit({
      each: options.limits?.perFunction ?? maxPerFunction,
      all: maxInAll,
    });
  }

  match(host: string): Site | undefined {
    if (!host.endsWith(this.#domain)) return undefined;
    const name = host.slice(0, -this.#domain.length);
    if (this.#functions.find(name) === undefined) return undefined;
    return {
      exists: async () => this.#functions.find(name) !== undefined,
      handle: (visitors) => this.#visit(name, visitors),
    };
  }

  async #visit(name: string, visitors: Visitors): Promise<void> {
    const { request, response, visitor } = visitors;
    const begun = performance.now();
    const requestId = requestIdOf(request);
    const route = this.#functions.find(name);
    let isSeen = false;
    const reportResponse = (status: number) => {
      if (isSeen || route === undefined) return;
      isSeen = true;
      this.#functions.recordResponse(route.functionId, { status, ms: performance.now() - begun });
    };
    try {
      if (route === undefined) throw new FunctionError("not_found");
      refuse(route, request);
      if (!this.#bounds.acquire(route.functionId)) throw new FunctionError("function_busy");
      try {
        await this.#serve(route, { ...visitors, upgrade: undefined }, requestId, reportResponse);
        // The visitor disconnected before a response.
        reportResponse(disconnectedStatus);
      } finally {
        this.#bounds.release(route.functionId);
      }
    } catch (error) {
      const hasLeft = response.destroyed || request.socket.destroyed;
      const code = codeOf(error);
      reportResponse(hasLeft ? disconnectedStatus : refusals[code].status);
      sendRefusal(visitors, code, { requestId, hsts: visitor.hsts });
      if (!(error instanceof FunctionError || error instanceof NoResponse || isRefusal(error)) && !hasLeft)
        throw error;
    }
  }

  async #serve(
    { functionId, keyHash }: FunctionRoute,
    visit: Visit,
    requestId: string,
    seen: (status: number) => void,
  ): Promise<void> {
    const { request, response, visitor } = visit;
    const left = new AbortController();
    const disconnect = () => left.abort(new Error("the visitor disconnected"));
    response.once("close", disconnect);
    try {
      for (let attempt = 1; attempt <= attempts; attempt += 1) {
        if (response.destroyed) return;
        const lease = await this.#functions.acquire(functionId, left.signal);
        const headers = toGuest(request, visitor, { isUpgrade: false, requestId });
        const isOver = await this.#pass(visit, lease, {
          path: pathOf(request.url ?? "/"),
          headers: keyHash === null ? headers : withoutKey(headers, keyHash),
          toVisitor: (answer) => {
            seen(answer.statusCode ?? 502);
            return toVisitor(answer, { hsts: visitor.hsts, requestId });
          },
          maxBodyBytes,
        });
        if (isOver) return;
      }
      throw new FunctionError("function_unavailable");
    } finally {
      response.off("close", disconnect);
    }
  }

  /** Forwards the request to an instance. Returns false if nothing was sent, because the instance is gone. */
  async #pass(
    visit: Visit,
    lease: FunctionLease,
    sent: Parameters<typeof proxyRequest>[3],
  ): Promise<boolean> {
    const patience = new ExchangeTimeouts(visit.response, lease);
    try {
      const { onTurn, signal } = patience;
      if (await proxyRequest(this.#upstreams, visit, lease, { ...sent, onAwaitedSide: onTurn, signal }))
        return true;
    } catch (error) {
      if (patience.isStuck) throw new FunctionError("function_timeout", { cause: error });
      if (!(error instanceof NoResponse)) throw error;
      if (error.why === "too_slow" || error.why === "too_large") throw error;
      if (error.why !== "not_listening") {
        await lease.reportGone();
        throw error;
      }
    } finally {
      patience.end();
      lease.release();
    }
    if (patience.isStuck) throw new FunctionError("function_timeout");
    await lease.reportGone();
    return false;
  }
}

function refuse({ keyHash, isDeployed }: FunctionRoute, request: IncomingMessage): void {
  if (keyHash !== null && !keysOf(request).some((key) => isKey(key, keyHash))) {
    throw new FunctionError("unauthorized");
  }
  if (!isDeployed) throw new FunctionError("function_not_deployed");
  if (request.headers.upgrade?.toLowerCase() === "websocket")
    throw new FunctionError("upgrade_not_supported");
  if (Number(request.headers["content-length"] ?? 0) > maxBodyBytes)
    throw new FunctionError("payload_too_large");
}

const bearer = /^bearer +(\S+) *$/i;

function keysOf({ headers }: IncomingMessage): string[] {
  const own = headers["x-api-key"];
  return [typeof own === "string" ? own : undefined, bearer.exec(headers.authorization ?? "")?.[1]].filter(
    (key) => key !== undefined,
  );
}

/** Compares digests in constant time. */
function isKey(key: string, keyHash: Buffer): boolean {
  const digest = createHash("sha256").update(key).digest();
  return digest.length === keyHash.length && timingSafeEqual(digest, keyHash);
}

/** Removes the function's key. A handler may use another Authorization header beside it. */
function withoutKey(headers: readonly string[], keyHash: Buffer): string[] {
  const kept: string[] = [];
  for (let at = 0; at < headers.length; at += 2) {
    const [name, value] = [headers[at]!, headers[at + 1]!];
    const lower = name.toLowerCase();
    if (lower === "x-api-key") continue;
    const key = lower === "authorization" ? bearer.exec(value)?.[1] : undefined;
    if (key === undefined || !isKey(key, keyHash)) kept.push(name, value);
  }
  return kept;
}

function isRefusal(error: unknown): error is { code: RefusalCode } {
  return Object.hasOwn(refusals, String((error as { code?: unknown } | null)?.code));
}

function codeOf(error: unknown): RefusalCode {
  if (error instanceof NoResponse) {
    if (error.why === "too_large") return "payload_too_large";
    if (error.why === "too_slow") return "body_too_slow";
    return error.why === "timeout" ? "function_timeout" : "function_crashed";
  }
  return isRefusal(error) ? error.code : "function_unavailable";
}

function sendRefusal(
  { request, response }: Visitors,
  code: RefusalCode,
  own: { requestId: string; hsts: boolean },
): void {
  if (response.headersSent || response.destroyed) {
    response.destroy();
    return;
  }
  const { status, message } = refusals[code];
  const body = JSON.stringify({ error: { code, message, request_id: own.requestId } });
  response.writeHead(status, [
    "Content-Type",
    "application/json; charset=utf-8",
    "Content-Length",
    String(Buffer.byteLength(body)),
    "Cache-Control",
    "no-store",
    "X-Content-Type-Options",
    "nosniff",
    "X-Kontor-Error",
    code,
    ...(status === 401 ? ["WWW-Authenticate", "Bearer"] : []),
    ...(status === 503 ? ["Retry-After", "2"] : []),
    ...ownHeaders(own),
  ]);
  response.end(request.method === "HEAD" ? undefined : body);
}
