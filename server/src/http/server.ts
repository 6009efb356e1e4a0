/**
 * The HTTP server of the three APIs. A request passes six steps: this file (id, size, deadlines), `authenticate`,
 * `validate`, a function of the API that calls its store or the machines, and `pick-declared.ts` for the response. Any
 * error goes straight to `renderError`. `defineRoute` declares paths, inputs and responses; this file knows no route.
 */
import { randomUUID } from "node:crypto";
import http, {
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerOptions,
  type ServerResponse,
} from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import fastifyFactory, { type FastifyInstance, type FastifyReply, type FastifyRequest } from "fastify";
import { sql } from "kysely";
import type { App } from "../app.ts";
import { apiOf } from "./api-of-path.ts";
import { authenticate, type FindActor, type WorkspaceOf } from "./authenticate.ts";
import { clientAddress, trustedProxies } from "./limits/client-address.ts";
import type { Api, AuditNote, Route } from "./define-route.ts";
import { serveDocs } from "./documents/docs-page.ts";
import { methodNotAllowed, routeNotFound, unauthenticated } from "./errors.ts";
import { IdempotencyKeys } from "./idempotency.ts";
import { acceptOnlyJson } from "./input/json-body.ts";
import { renderMetrics, startMetrics } from "./metrics.ts";
import { nearAddress } from "./near-address.ts";
import { type Introduction, openApiDocument } from "./documents/openapi.ts";
import { type RawSite, serveRaw } from "./streams/raw-routes.ts";
import { RateLimiter } from "./limits/rate-limit.ts";
import {
  countAddress,
  countUnknown,
  defaultBodyLimitBytes,
  registerRoute,
  type RouteServices,
} from "./register.ts";
import { renderError, type RenderedError } from "./render-error.ts";
import { endAllStreams } from "./streams/sse.ts";
import { type FindActors, OpenStreams } from "./streams/open-streams.ts";
import { endAllSockets, routeHandshake, upgradeFilter } from "./streams/web-socket.ts";

export type Routes = Readonly<Record<Api, readonly Route[]>>;

export interface HttpOptions {
  findActor: FindActor;
  /** Finds many actors at once. Default: finds each actor separately. */
  findActors?: FindActors;
  /** Absent if no path names an object that has an owner. */
  workspaceOf?: WorkspaceOf;
  /** Extra fields of the `/readyz` response. The status is 503 unless `ready`. */
  readiness?: () => Promise<{ ready: boolean } & Record<string, unknown>>;
  front?: Front;
  /** Receives entries of the audit log. */
  noteAccess?: (note: AuditNote) => void;
  /** First page of each document. */
  introductions?: Readonly<Record<Api, Introduction>>;
  /** Sites that are served beside the routes, by path prefix. */
  raw?: readonly RawSite[];
}

/** A server in front of the APIs that gets every request first. */
interface Front {
  /** Creates the server with these options. The server passes requests for the APIs on. */
  createServer(apis: Apis): Server;
}

interface Apis {
  handle: RequestListener;
  /** Handles upgrades of requests that `options.shouldUpgradeCallback` accepts. */
  upgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void;
  clientError: (error: NodeJS.ErrnoException, socket: Socket) => void;
  options: ServerOptions;
}

export interface HttpServer {
  /** For `inject` in tests, and for code that registers a path before `listen`. */
  readonly fastify: FastifyInstance;
  /**
   * Listens on the bound socket `fd`, if given. Returns the port, which differs from the requested port if that is 0.
   */
  listen(address: { host: string; port: number; fd?: number }): Promise<number>;
  /** From now on `/readyz` responds with 503, and each connection is closed after its response. */
  startDraining(): void;
  /** Accepts no new connections, waits up to `graceMs` for running requests, then cuts the others. */
  close(graceMs?: number): Promise<void>;
}

/** Deadline for the whole body of an API request: 16 MiB at 1 Mbit/s take 134 s. */
const requestTimeoutMs = 300_000;
const headersTimeoutMs = 15_000;
/**
 * Interval of the timeout checks. Node's default of 30 s would let a slow request live three times as long as allowed.
 */
const lateCheckMs = 5_000;
/**
 * Idle timeout of a kept connection: longer than the 60 s after which common proxies drop an idle upstream connection,
 * so that the proxy closes it first.
 */
const keepAliveMs = 75_000;
const maxHeaderBytes = 16 * 1024;

export async function createHttpServer(
  app: Pick<App, "config" | "db" | "clock" | "log">,
  routes: Routes,
  options: HttpOptions,
): Promise<HttpServer> {
  const { config, log } = app;
  const draining = new AbortController();
  const limiter = new RateLimiter(app.clock);
  const rateNumbers = config.rateLimits ? config : null;
  const isTrusted = trustedProxies(config.trustedProxies);
  const { findActor, findActors = (credentials) => Promise.all(credentials.map(findActor)) } = options;
  const streams = new OpenStreams(findActors, log, rateNumbers);
  const serveSite = (request: IncomingMessage, response: ServerResponse): boolean =>
    serveRaw(options.raw ?? [], request, response, {
      requestId: requestIdOf(request.headers["x-request-id"]),
      draining: draining.signal,
      log,
      streams,
      countAddress: () =>
        countAddress({ limiter, rateNumbers }, clientAddress(request, isTrusted) ?? undefined),
    });
  const fastify = fastifyFactory({
    logger: false,
    trustProxy: isTrusted,
    bodyLimit: defaultBodyLimitBytes,
    serverFactory: (handle) =>
      makeServer(options.front, {
        handle: (request, response) => serveSite(request, response) || serveApi(handle, request, response),
        shouldUpgrade: upgradeFilter(Object.values(routes).flat()),
        upgrade: (request, socket, head) => routeHandshake(fastify, request, socket, head),
      }),
    forceCloseConnections: "idle",
    // A request on a kept connection is still served while the server drains; `/readyz` has already redirected other
    // clients.
    return503OnClosing: false,
    routerOptions: { maxParamLength: 512, ignoreTrailingSlash: true },
    genReqId: (request) => requestIdOf(request.headers["x-request-id"]),
    clientErrorHandler: handleMalformedRequest,
    frameworkErrors: (error, request, reply) => {
      reply.header("x-request-id", request.id);
      sendError(reply as unknown as FastifyReply, renderError(apiOf(request.url), error, request.id));
    },
  });
  const keys = new IdempotencyKeys(app.db, app.clock, log);
  const services: RouteServices = {
    findActor,
    workspaceOf: options.workspaceOf ?? (async () => undefined),
    limiter,
    rateNumbers,
    keys,
    publicOrigin: config.publicUrl,
    countUnknown: (address) => countUnknown({ limiter, rateNumbers }, address),
    noteAccess: options.noteAccess ?? (() => {}),
    log,
  };

  fastify.decorateRequest("actor");
  fastify.decorate("streams", streams);
  acceptOnlyJson(fastify);
  observe(fastify, log, () => draining.signal.aborted);
  renderErrors(fastify, log);
  handleUnknownPath(fastify, Object.values(routes).flat());
  const [raw, json] = partition(Object.values(routes).flat());
  for (const route of json) registerRoute(fastify, route, services);
  await fastify.register(async (inner) => {
    inner.removeAllContentTypeParsers();
    inner.addContentTypeParser("*", (_request, payload, done) => done(null, payload));
    for (const route of raw) registerRoute(inner, route, services);
  });
  serveDocuments(fastify, routes, options.introductions);
  serveDocs(fastify);
  serveHealth(fastify, app, services, options, () => draining.signal.aborted);
  await fastify.ready();

  return {
    fastify,
    async listen(address) {
      // Node accepts descriptors, but Fastify's types do not. With a host name, Fastify would also bind its other
      // address.
      const socket = address.fd === undefined ? {} : { host: "127.0.0.1" };
      await fastify.listen({ ...address, ...socket });
      const bound = fastify.server.address();
      return typeof bound === "object" && bound !== null ? bound.port : address.port;
    },
    startDraining: () => draining.abort(),
    async close(graceMs = 0) {
      draining.abort();
      keys.close();
      streams.close();
      // WebSockets are ended here, because they do not end by themselves.
      endAllSockets();
      const cut = setTimeout(() => {
        endAllStreams();
        fastify.server.closeAllConnections();
      }, graceMs);
      await fastify.close();
      clearTimeout(cut);
    },
  };
}

function makeServer(
  front: Front | undefined,
  {
    handle,
    shouldUpgrade,
    upgrade,
  }: Pick<Apis, "handle" | "upgrade"> & {
    shouldUpgrade: (request: IncomingMessage) => boolean;
  },
): Server {
  const apis: Apis = {
    handle,
    upgrade,
    clientError: handleMalformedRequest,
    options: {
      maxHeaderSize: maxHeaderBytes,
      headersTimeout: headersTimeoutMs,
      connectionsCheckingInterval: lateCheckMs,
      keepAliveTimeout: keepAliveMs,
      requestTimeout: 0,
      // Node's 400 response has no body; ours has a JSON body.
      requireHostHeader: false,
      shouldUpgradeCallback: shouldUpgrade,
    },
  };
  // The front's server passes on only upgrades for the APIs.
  return front?.createServer(apis) ?? http.createServer(apis.options, apis.handle).on("upgrade", upgrade);
}

function serveApi(handle: RequestListener, request: IncomingMessage, response: ServerResponse): void {
  if (request.headers.host === undefined && request.httpVersion === "1.1") return refuseMissingHost(response);
  endLateBody(request);
  handle(request, response);
}

/** Refuses a request without a Host header (RFC 9112, 3.2). */
function refuseMissingHost(response: ServerResponse): void {
  const detail = "Send a Host header: HTTP/1.1 requires it.";
  const body = { detail, message: detail, code: "invalid_request" };
  response.writeHead(400, {
    "x-request-id": randomUUID(),
    "content-type": "application/json; charset=utf-8",
    connection: "close",
  });
  response.end(JSON.stringify(body));
}

/** Node's `requestTimeout` would also end a visitor's long upload to a site. */
function endLateBody(request: IncomingMessage): void {
  const { "content-length": length = "0", "transfer-encoding": encoding } = request.headers;
  if (encoding === undefined && Number(length) === 0) return;
  const late = Object.assign(new Error("the body did not arrive in time"), {
    code: "ERR_HTTP_REQUEST_TIMEOUT",
  });
  const timer = setTimeout(() => handleMalformedRequest(late, request.socket), requestTimeoutMs);
  request.once("close", () => clearTimeout(timer));
}

/** Keeps a caller's own id if it is safe in a log line. Otherwise generates a new id. */
function requestIdOf(header: string | string[] | undefined): string {
  return typeof header === "string" && /^[A-Za-z0-9._-]{1,128}$/.test(header) ? header : randomUUID();
}

function partition(routes: readonly Route[]): [streams: Route[], json: Route[]] {
  return [
    routes.filter((route) => route.bodyType === "stream"),
    routes.filter((route) => route.bodyType !== "stream"),
  ];
}

/**
 * Sends a request id on every response, and writes a log line and a metric per request. Never logs the query, because
 * it may hold a token.
 */
function observe(fastify: FastifyInstance, log: App["log"], isDraining: () => boolean): void {
  const count = startMetrics();
  fastify.addHook("onRequest", (request, reply, done) => {
    reply.header("x-request-id", request.id);
    reply.header("x-content-type-options", "nosniff");
    if (isDraining()) reply.header("connection", "close");
    done();
  });
  fastify.addHook("onResponse", (request, reply, done) => {
    const { api, path } = request.routeOptions.config;
    const route = path ?? request.routeOptions.url ?? "unknown";
    const seconds = reply.elapsedTime / 1000;
    const { method } = request;
    count({ api: api ?? "none", method, route, status: reply.statusCode, seconds });
    const line = {
      request_id: request.id,
      method,
      route,
      status: reply.statusCode,
      duration_ms: Math.round(reply.elapsedTime * 10) / 10,
      actor: request.actor?.id,
    };
    if (method === "GET" && reply.statusCode < 500) log.debug(line, "request");
    else log.info(line, "request");
    done();
  });
}

function renderErrors(fastify: FastifyInstance, log: App["log"]): void {
  fastify.setErrorHandler(async (error, request, reply) => {
    const { config, bodyLimit } = request.routeOptions;
    // Stores the route's limit in the error, because only the failed request knows it.
    if (error instanceof Error) Object.assign(error, { limitBytes: bodyLimit });
    const rendered = renderError(config.api ?? apiOf(request.url), error, request.id);
    const hasGone = request.raw.destroyed && !request.raw.complete;
    if (rendered.isFault && !hasGone) {
      log.error(
        { request_id: request.id, method: request.method, route: config.path, error },
        "request failed",
      );
    }
    if (rendered.status === 413) drainBody(request, reply, bodyLimit);
    return sendError(reply, rendered);
  });
}

/** Maximum of bytes that are read and dropped: above any route's limit, and still a bound on useless traffic. */
const drainMaxBytes = 256 * 1024 ** 2;
/** Maximum for a route with a small limit, as a multiple of that limit. */
const drainTimesLimit = 64;

/**
 * Reads and drops the rest of a body that is too large. Fastify would close the connection, and a client that is still
 * writing would see a broken pipe instead of the error. On a kept connection, Node reads and drops the rest.
 */
function drainBody(request: FastifyRequest, reply: FastifyReply, limitBytes: number): void {
  const most = Math.min(drainMaxBytes, drainTimesLimit * limitBytes);
  if (Number(request.headers["content-length"]) <= most) reply.removeHeader("connection");
}

function sendError(reply: FastifyReply, { status, headers, body }: RenderedError): FastifyReply {
  return reply
    .code(status)
    .headers(headers)
    .type("application/json; charset=utf-8")
    .send(JSON.stringify(body));
}

/**
 * Responds with 404 in the path's own API, or 405 if another method exists. Patterns are tried only for unknown paths.
 */
function handleUnknownPath(fastify: FastifyInstance, routes: readonly Route[]): void {
  const known = routes.map(({ method, path }) => ({
    method,
    pattern: new RegExp(`^${path.replaceAll(/\{\w+\}/g, "[^/]+").replaceAll(".", "\\.")}$`),
  }));
  const paths = [...new Set(routes.map(({ path }) => path))];
  fastify.setNotFoundHandler((request: FastifyRequest) => {
    const path = request.url.split("?")[0]!.replace(/(?<=.)\/$/, "");
    const methods = known.filter(({ pattern }) => pattern.test(path)).map(({ method }) => method);
    if (methods.length > 0) throw methodNotAllowed([...new Set(methods)].toSorted());
    throw routeNotFound(nearAddress(path, paths));
  });
}

function serveDocuments(
  fastify: FastifyInstance,
  routes: Routes,
  introductions: HttpOptions["introductions"],
): void {
  for (const api of ["platform", "sandbox", "agent"] as const) {
    let text: string | undefined;
    const serve = () => (text ??= JSON.stringify(openApiDocument(api, routes[api], introductions?.[api])));
    const addresses = [`/openapi/${api}.json`, ...(api === "platform" ? ["/openapi.json"] : [])];
    for (const address of addresses) {
      fastify.get(address, (_, reply) => reply.type("application/json; charset=utf-8").send(serve()));
    }
  }
}

function serveHealth(
  fastify: FastifyInstance,
  app: Pick<App, "config" | "db" | "log">,
  services: RouteServices,
  { readiness }: HttpOptions,
  isDraining: () => boolean,
): void {
  fastify.get("/healthz", () => ({ status: "ok" }));
  fastify.get("/readyz", async (_, reply) => {
    const database = await sql`select 1`.execute(app.db).then(
      () => true,
      () => false,
    );
    const rest = (await readiness?.()) ?? { ready: true };
    const ready = database && rest.ready && !isDraining();
    return reply.code(ready ? 200 : 503).send({ ...rest, ready, database, draining: isDraining() });
  });
  fastify.get("/metrics", async (request, reply) => {
    if (!app.config.metricsLoopback || !isLocal(request)) await requireOperator(services, request);
    const { contentType, text } = await renderMetrics();
    return reply.type(contentType).send(text);
  });
}

/** True if the request comes from this host, and not through a proxy on it. */
function isLocal({ ip, headers }: FastifyRequest): boolean {
  const isForwarded = headers["x-forwarded-for"] !== undefined || headers.forwarded !== undefined;
  return !isForwarded && (ip === "127.0.0.1" || ip === "::1" || ip === "::ffff:127.0.0.1");
}

/** A token with scopes is refused: the metrics concern the whole installation. */
async function requireOperator(services: RouteServices, request: FastifyRequest): Promise<void> {
  const actor = await authenticate(services, request, { scope: null, method: "GET" });
  if (!actor.isOperator || actor.scopes !== null) throw unauthenticated();
}

/** Responds in our format to malformed or oversized HTTP, and closes the connection. */
function handleMalformedRequest(error: NodeJS.ErrnoException, socket: Socket): void {
  if (error.code === "ECONNRESET" || socket.destroyed || !socket.writable) return void socket.destroy();
  const answers: Record<string, [string, string, string]> = {
    HPE_HEADER_OVERFLOW: [
      "431 Request Header Fields Too Large",
      "headers_too_large",
      "The request's headers are too large; send smaller headers.",
    ],
    ERR_HTTP_REQUEST_TIMEOUT: [
      "408 Request Timeout",
      "request_timeout",
      "The request took too long to arrive; send it again.",
    ],
  };
  const [status, code, detail] = answers[error.code ?? ""] ?? [
    "400 Bad Request",
    // The code of invalid input, because a request that cannot be parsed belongs to no operation.
    "invalid_request",
    "This is not a valid HTTP request; send HTTP/1.1.",
  ];
  const body = JSON.stringify({ detail, message: detail, code });
  socket.end(
    `HTTP/1.1 ${status}\r\nx-request-id: ${randomUUID()}\r\ncontent-type: application/json; charset=utf-8\r\n` +
      `content-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`,
  );
}
