/**
 * Registers each route row as one Fastify route. A request passes these steps in order: authenticate and count, parse,
 * replay or run, keep the declared fields, send. A handler holds no `if`; differences between routes are in their rows.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import type { Logger } from "pino";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { DomainError } from "#lib/errors.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import {
  authenticate,
  type FindActor,
  hidesSecrets,
  refusesSuspended,
  refusesViewers,
  requireActive,
  requireEditor,
  requireScope,
  type WorkspaceOf,
} from "./authenticate.ts";
import {
  Answer,
  type AuditRule,
  type AuditNote,
  mayStreamEvents,
  type Route,
  type RouteInput,
  type SocketDefinition,
  streamed,
} from "./define-route.ts";
import { addressLimited, lengthRequired, payloadTooLarge, rateLimited, secretsHidden } from "./errors.ts";
import {
  hashRequest,
  type IdempotencyKeys,
  type KeyedRequest,
  type CreatedResource,
  type Outcome,
  parseIdempotencyKey,
  type StoredResponse,
} from "./idempotency.ts";
import { compileMask, type Mask } from "./mask-secrets.ts";
import type { OpenStreams } from "./streams/open-streams.ts";
import { compilePick, type Pick as PickFields } from "./pick-declared.ts";
import type { RateLimiter, RateRule, RateVerdict } from "./limits/rate-limit.ts";
import {
  addressHolder,
  addressRule,
  type RateNumbers,
  rateRules,
  unknownCredentialRule,
} from "./limits/rate-rules.ts";
import { errorBody } from "./render-error.ts";
import { compileValidation, type ParsedInput } from "./input/validate.ts";
import { checkHandshake, isHandshake, serveSocket } from "./streams/web-socket.ts";

export interface RouteServices {
  findActor: FindActor;
  workspaceOf: WorkspaceOf;
  limiter: RateLimiter;
  /** Null if rate limits are off. */
  rateNumbers: RateNumbers | null;
  keys: IdempotencyKeys;
  /** The origin at which browsers reach the server from outside. Null if none is set. */
  publicOrigin: string | null;
  /** Counts an unknown credential for the client's address. Throws when the address exceeds the limit. */
  countUnknown: (address: string) => void;
  log: Pick<Logger, "error">;
  /** Receives entries of the audit log. Must not throw. */
  noteAccess: (note: AuditNote) => void;
}

export const defaultBodyLimitBytes = 1024 * 1024;
/** Requests without a credential have small bodies. */
const publicBodyLimitBytes = 16 * 1024;

declare module "fastify" {
  interface FastifyRequest {
    /** Set by `authenticate`, before any handler. */
    actor: Actor;
  }
  interface FastifyInstance {
    streams: OpenStreams;
  }
  interface FastifyContextConfig {
    api?: Route["api"];
    path?: string;
  }
}

export function registerRoute(fastify: FastifyInstance, route: Route, services: RouteServices): void {
  const validate = compileValidation(route);
  const usualLimit = route.scope === "public" ? publicBodyLimitBytes : defaultBodyLimitBytes;
  const bodyLimit = route.bodyLimit ?? usualLimit;
  const encoders = compileEncoders(route);
  // A handshake is a GET, but its socket accepts input, so the checks of a write apply.
  const opened = route.socket && { ...route.socket, method: "POST" as const };
  const openSocket = route.socket && compileSocket(route, route.socket, services);
  const { workspaceOf } = services;
  const visitOf = (request: FastifyRequest) => ({ actor: request.actor, request, route, workspaceOf });
  fastify.route({
    method: route.method,
    url: route.path.replaceAll(/\{(\w+)\}/g, ":$1"),
    bodyLimit,
    // A stream has no HEAD route, because a HEAD request would open the stream.
    exposeHeadRoute: route.method === "GET" && !isStream(route),
    config: { api: route.api, path: route.path },
    onRequest: async (request, reply) => {
      // A page of another site could open a socket with our cookie and read from it. So the origin is checked as for a
      // write.
      const isSocket = isHandshake(request);
      if (route.scope === "public") countAddress(services, request.ip);
      const isChange = isSocket || route.method !== "GET";
      request.actor = await authenticate(services, request, route, isChange);
      countRequest(services, route, request.actor, reply);
      const rule = (isSocket ? opened : undefined) ?? route;
      requireScope(request.actor, rule);
      if (refusesViewers(rule)) request.actor = await requireEditor(visitOf(request));
      if (refusesSuspended(rule)) await requireActive(visitOf(request));
      if (route.needsSecrets && (await hidesSecrets(visitOf(request)))) throw secretsHidden();
      if (route.bodyType === "stream") checkLength(request, bodyLimit);
    },
    handler: async (request, reply) => {
      if (openSocket && isHandshake(request)) return openSocket(request, reply);
      const isMasked = await hidesSecrets(visitOf(request));
      const encode = (result: unknown) => encoders(result, isMasked);
      const input = validate({ params: request.params, query: request.query, body: request.body });
      // The slot is reserved before the work starts, because a later refusal could not be sent.
      const giveUp = wantsStream(route, input)
        ? request.server.streams.reserve(request, request.actor)
        : undefined;
      if (route.audit) services.noteAccess(noteOf(route.audit, request.actor, input));
      const run = async (actor: Actor, note: Note): Promise<EncodedResponse | undefined> => {
        const result = await route.handler({ ...input, actor, request, reply, note });
        return result === streamed ? undefined : encode(result);
      };
      try {
        const answer = await replayOrRun(route, services.keys, { request, reply }, input, run, encode);
        return answer === undefined ? reply : send(reply, answer);
      } catch (error) {
        if (!reply.sent) throw error;
        // The headers are sent, so the response can only be cut off to show that it is incomplete.
        services.log.error({ request_id: request.id, route: route.path, error }, "a stream failed midway");
        reply.raw.destroy();
        return reply;
      } finally {
        giveUp?.();
      }
    },
  });
}

/** Compiles the handler that parses a handshake by its own schema and opens the socket. */
function compileSocket(
  route: Route,
  socket: SocketDefinition,
  { noteAccess }: RouteServices,
): (request: FastifyRequest, reply: FastifyReply) => Promise<FastifyReply> {
  const validate = compileValidation({ ...route, query: socket.query });
  return async (request, reply) => {
    checkHandshake(request);
    const { params, query } = validate({ params: request.params, query: request.query, body: undefined });
    const { actor } = request;
    const giveUp = request.server.streams.reserve(request, actor);
    try {
      const serve = await socket.open({ actor, params, query });
      if (socket.audit)
        noteAccess(noteOf(socket.audit as AuditRule, actor, { params, query, body: undefined }));
      await serveSocket(request, reply, serve);
      return reply;
    } finally {
      giveUp();
    }
  };
}

function noteOf(
  audited: AuditRule,
  actor: Actor,
  input: { params: unknown; query: unknown; body: unknown },
): AuditNote {
  const { action, kind, workspacesOf: workspace } = audited;
  const target = { kind, id: audited.id(input.params), label: null };
  return { actor, action, target, workspace, detail: audited.detail?.(input) ?? {} };
}

function isStream(route: Route): boolean {
  return Object.values(route.responses).some(
    (response) => response !== null && "contentType" in response && !(response instanceof z.ZodType),
  );
}

/** True if the response to this request is server-sent events. */
function wantsStream(route: Route, { query, body }: ParsedInput): boolean {
  if (!mayStreamEvents(route)) return false;
  if (route.events === undefined) return true;
  const { follow, stream } = { ...(query as object), ...(body as object) } as Record<string, unknown>;
  return follow === true || stream === true;
}

/** An encoded response: JSON text, no body, or a non-JSON body unchanged. */
interface EncodedResponse {
  status: number;
  headers: Readonly<Record<string, string>>;
  text: string | null;
  /** The value that `text` encodes, from which secrets can be removed. Undefined if the body is not JSON. */
  value?: unknown;
  raw?: { contentType: string; body: unknown };
}

/** Compiles an encoder for the success statuses of a route, which turns a handler's result into a response. */
function compileEncoders(route: Route): (result: unknown, isMasked: boolean) => EncodedResponse {
  const declared = Object.keys(route.responses).map(Number);
  // A POST that may create or find a resource responds with 201, unless its handler returns another status.
  const usual = declared.includes(201) ? 201 : (declared[0] ?? 200);
  const picks = new Map<number, PickFields>();
  const masks = new Map<number, Mask | undefined>();
  for (const [status, response] of Object.entries(route.responses)) {
    if (!(response instanceof z.ZodType)) continue;
    picks.set(Number(status), compilePick(response));
    masks.set(Number(status), compileMask(response));
  }
  return (result, isMasked) => {
    const given = result instanceof Answer ? result : new Answer(usual, result, {});
    const response = route.responses[given.status];
    if (response === undefined)
      throw new Error(
        `${route.operationId} returned the status ${given.status}, which the route does not declare`,
      );
    const head = { status: given.status, headers: given.headers };
    if (response === null) return { ...head, text: null };
    const pick = picks.get(given.status);
    if (pick === undefined) {
      const { contentType } = response as { contentType: string };
      return { ...head, text: null, raw: { contentType, body: given.body } };
    }
    const picked = pick(given.body);
    const mask = isMasked ? masks.get(given.status) : undefined;
    const value = mask ? mask(picked) : picked;
    return { ...head, text: JSON.stringify(value), value };
  };
}

function send(reply: FastifyReply, answer: EncodedResponse): FastifyReply {
  // A response belongs to one caller and may hold a secret, so no cache stores it.
  reply.code(answer.status).header("cache-control", "no-store").headers(answer.headers);
  if (answer.raw) return reply.type(answer.raw.contentType).send(answer.raw.body);
  if (answer.text === null) return reply.send();
  return reply.type("application/json; charset=utf-8").send(answer.text);
}

function countRequest(
  { limiter, rateNumbers }: RouteServices,
  route: Route,
  actor: Actor,
  reply: FastifyReply,
): void {
  if (rateNumbers === null || actor.tokenId === null) return;
  const verdicts = rateRules(rateNumbers, route, actor).map((rule) => limiter.take(actor.tokenId!, rule));
  // The headers show the limit with the least remaining.
  const tightest = verdicts.toSorted(
    (a, b) => b.retryAfterSeconds - a.retryAfterSeconds || a.remaining - b.remaining,
  )[0];
  if (tightest === undefined) return;
  setRateHeaders(reply, tightest);
  if (!tightest.isAllowed) throw rateLimited(tightest.retryAfterSeconds);
}

type Counting = Pick<RouteServices, "limiter" | "rateNumbers">;

/** Counts the request by address, before any look-up. */
export function countAddress(counting: Counting, address: string | undefined): void {
  countBy(counting, addressRule, address);
}

/** Counts a request whose credential is unknown. */
export function countUnknown(counting: Counting, address: string | undefined): void {
  countBy(counting, unknownCredentialRule, address);
}

function countBy(
  { limiter, rateNumbers }: Counting,
  rule: (numbers: RateNumbers) => RateRule,
  address: string | undefined,
): void {
  if (rateNumbers === null) return;
  const verdict = limiter.take(addressHolder(address), rule(rateNumbers));
  if (!verdict.isAllowed) throw addressLimited(verdict.retryAfterSeconds);
}

function setRateHeaders(reply: FastifyReply, { limit, remaining, resetSeconds }: RateVerdict): void {
  reply.headers({
    "x-ratelimit-limit": String(limit),
    "x-ratelimit-remaining": String(remaining),
    "x-ratelimit-reset": String(resetSeconds),
  });
}

function checkLength(request: FastifyRequest, limitBytes: number): void {
  const length = request.headers["content-length"];
  if (length === undefined) throw lengthRequired();
  if (Number(length) > limitBytes) throw payloadTooLarge(limitBytes);
}

type Note = RouteInput<never, never, never>["note"];

/** Runs the handler once per key, or always without a key. Returns the response. Undefined if the handler streamed. */
async function replayOrRun(
  route: Route,
  keys: IdempotencyKeys,
  { request, reply }: { request: FastifyRequest; reply: FastifyReply },
  input: ParsedInput,
  run: (actor: Actor, note: Note) => Promise<EncodedResponse | undefined>,
  encode: (result: unknown) => EncodedResponse,
): Promise<EncodedResponse | undefined> {
  const takesKey =
    typeof route.idempotent === "function" ? route.idempotent(input.body) : route.idempotent === true;
  const key = takesKey ? parseIdempotencyKey(request.headers["idempotency-key"]) : undefined;
  const { actor } = request;
  if (key === undefined) return run(actor, async () => {});
  const keyed: KeyedRequest = {
    caller: actor.tokenId ?? `user:${actor.userId}`,
    route: route.operationId,
    key,
    bodyHash: hashRequest([request.params, request.query, request.body]),
  };
  const streamAgain = wantsStream(route, input) ? route.replay?.stream : undefined;
  const outcome = await keys.begin(keyed, streamAgain !== undefined);
  if (outcome) {
    const [first, ...more] = "made" in outcome ? outcome.made : [];
    if (streamAgain && first) {
      reply.header("idempotent-replayed", "true");
      await streamAgain({ ...input, actor, request, reply, made: [first, ...more] });
      return undefined;
    }
    const again = await replay(route, outcome, { actor, params: input.params }, encode);
    if (again) return { ...again, headers: { ...again.headers, "idempotent-replayed": "true" } };
    await keys.restart(keyed);
  }
  try {
    const answer = await run({ ...actor, onActivity: activityRecorder(route, keys, keyed) }, (tx, made) =>
      keys.note(tx, keyed, made),
    );
    await passKillPoint("request.unanswered");
    if (answer === undefined || answer.raw) await keys.release(keyed);
    else await keys.finish(keyed, toStored(answer, route));
    return answer;
  } catch (error) {
    const refusal = error instanceof DomainError && isLasting(error) ? error : undefined;
    if (refusal) await keys.finish(keyed, refusalToStored(refusal));
    else await keys.release(keyed);
    throw error;
  }
}

/** Returns an `onActivity` callback that records the resources of the route's activity with the key. */
function activityRecorder(
  { replay: how }: Route,
  keys: IdempotencyKeys,
  keyed: KeyedRequest,
): NonNullable<Actor["onActivity"]> {
  return async (tx, { action, targetId, detail }) => {
    if (how?.activity === action) await keys.note(tx, keyed, { ...detail, id: targetId });
  };
}

/** Returns the response to a retry. Undefined if the first request left no usable resource. */
async function replay(
  route: Route,
  outcome: Outcome,
  caller: { actor: Actor; params: unknown },
  encode: (result: unknown) => EncodedResponse,
): Promise<EncodedResponse | undefined> {
  const kept = "answer" in outcome ? storedFieldsOf(route, outcome.answer) : outcome.made;
  const [first, ...more] = kept ?? [];
  if (!route.replay || !first) return "answer" in outcome ? outcome.answer : undefined;
  const result = await route.replay.render({ ...caller, made: [first, ...more] });
  if (result === undefined) return undefined;
  const answer = encode(result);
  return { ...answer, text: blankSecrets(answer, route) };
}

/** Returns the stored fields of a response that is rendered again. */
function storedFieldsOf(
  { replay: how }: Route,
  { status, text }: StoredResponse,
): CreatedResource[] | undefined {
  return how?.keeps && status < 400 ? [JSON.parse(text ?? "{}") as CreatedResource] : undefined;
}

/**
 * True for an error that a retry gets again. Temporary errors and server faults are not stored, because a retry may
 * succeed.
 */
function isLasting({ status, meta }: DomainError): boolean {
  return status < 500 && status !== 429 && meta.retry_after === undefined;
}

function toStored(answer: EncodedResponse, route: Route): StoredResponse {
  const { status, headers, value } = answer;
  const keeps = route.replay?.keeps;
  if (keeps === undefined) return { status, headers, text: blankSecrets(answer, route) };
  const kept = Object.entries(value as object).filter(([name]) => keeps.includes(name));
  return { status, headers, text: JSON.stringify(Object.fromEntries(kept)) };
}

/**
 * Returns the text of a response without its secrets, at any depth: an operation that creates several resources returns
 * a list.
 */
function blankSecrets({ value, text }: EncodedResponse, { secretFields = [] }: Route): string | null {
  if (secretFields.length === 0) return text;
  const blank = (name: string, inner: unknown) => (secretFields.includes(name) ? null : inner);
  return JSON.stringify(value, blank);
}

function refusalToStored(refusal: DomainError): StoredResponse {
  return { status: refusal.status, headers: {}, text: JSON.stringify(errorBody(refusal)) };
}
