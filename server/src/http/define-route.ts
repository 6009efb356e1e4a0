/**
 * A route is data: its input, its responses, its errors, and a handler of one expression. The same row registers the
 * route, checks scope and input, renders the response and writes OpenAPI, so these always agree.
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import type { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { Scope } from "#accounts/roles.ts";
import type { Db } from "#schema.ts";
import type { ErrorRow } from "#lib/errors.ts";
import type { CreatedResource } from "./idempotency.ts";
import type { Socket } from "./streams/socket.ts";

export type Api = "platform" | "sandbox" | "agent";
type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** Input of a handler. `reply` is for streams only: every other handler returns its result. */
export interface RouteInput<P, Q, B> {
  actor: Actor;
  params: P;
  query: Q;
  body: B;
  request: FastifyRequest;
  reply: FastifyReply;
  /**
   * Records what the request created, in the same transaction. Handlers without an activity entry call this function.
   * After a crash of this server, a retry with the same `Idempotency-Key` gets its response from `replay`. Does nothing
   * without a key.
   */
  note: (tx: Db, made: CreatedResource) => Promise<void>;
}

/** Name of our WebSocket protocol, for clients that must name one, such as browsers with a token. */
export const subprotocol = "kontor";

/** A WebSocket that a GET request opens. */
export interface SocketDefinition<P extends z.ZodType = z.ZodType, Q extends z.ZodType = z.ZodType> {
  summary: string;
  description: string;
  /** Scope that the socket needs, which may differ from the route's. */
  scope: Scope;
  /** Query parameters of the handshake. */
  query: Q;
  /** Text messages of the client (`takes`) and of the server (`sends`). `description` covers binary messages. */
  takes: z.ZodType;
  sends: z.ZodType;
  errors: readonly ErrorRow<never[]>[];
  audit?: AuditRule<z.output<P>, z.output<Q>, undefined>;
  /**
   * Checks the handshake. An error that this function throws becomes an ordinary response. The returned function gets
   * the socket.
   */
  open: (
    input: Pick<RouteInput<z.output<P>, z.output<Q>, undefined>, "actor" | "params" | "query">,
  ) => Promise<(socket: Socket) => Promise<void>>;
}

export interface RouteDefinition<
  P extends z.ZodType = z.ZodType,
  Q extends z.ZodType = z.ZodType,
  B extends z.ZodType = z.ZodType,
  S extends z.ZodType = z.ZodType,
> {
  api: Api;
  method: Method;
  /** A path with `{name}` parameters, as in the documents: `/v1/sandboxes/{id}/exec`. */
  path: string;
  /** Unique in the three documents, in camelCase. SDKs use it as the method name. */
  operationId: string;
  tag: string;
  summary: string;
  description?: string;
  /**
   * Scope that a caller needs. Null: any valid credential is accepted, and the handler checks access itself.
   * `"public"`: no credential is needed.
   */
  scope: Scope | null | "public";
  params?: P;
  query?: Q;
  body?: B;
  /** Maps each success status to a schema, to null for no body, or to the media type of a non-JSON body. */
  responses: Record<
    number,
    z.ZodType | null | { contentType: string; description: string; schema?: z.ZodType }
  >;
  /** Schema of a `data:` line, if the route can respond with server-sent events instead of its first success. */
  events?: z.ZodType;
  /** The WebSocket that the route opens when the request is a handshake. */
  socket?: SocketDefinition<P, S>;
  errors?: readonly ErrorRow<never[]>[];
  /** True for operations that Kontor adds to the contract. OpenAPI marks them with `x-kontor-extension`. */
  extension?: boolean;
  /** Maximum size of the body in bytes. Default: 1 MiB. */
  bodyLimit?: number;
  /**
   * With `stream`, the body is not read; the handler reads `request.raw`, and `Content-Length` is required (411).
   * Default: JSON.
   */
  bodyType?: "json" | "stream";
  /**
   * True if the route allows writes in a suspended workspace. By default only DELETE does, because it frees resources.
   */
  whileSuspended?: boolean;
  /** True for a write that a viewer of the team may make, because it concerns the caller alone. */
  allowsViewers?: boolean;
  /** Fields of the record that a PATCH accepts and ignores, so that a client can send back a changed GET response. */
  readOnlyFields?: readonly string[];
  /**
   * True if the route accepts `Idempotency-Key`: each POST that creates a row, and buffered exec (a function of the
   * body).
   */
  idempotent?: boolean | ((body: z.output<B>) => boolean);
  /**
   * Renders the response to a retry whose first request created something, but stored no response or only part of it.
   */
  replay?: Replay<z.output<P>, z.output<Q>, z.output<B>>;
  /** True if the operation exists to return a secret. Callers that may not read secrets get 403 `secrets_hidden`. */
  needsSecrets?: boolean;
  /** Fields of the response that are never stored for a replay. The replayed response has null in these fields. */
  secretFields?: readonly string[];
  /** Audits reads and runs, which change no record, when a valid request reaches the handler. */
  audit?: AuditRule<z.output<P>, z.output<Q>, z.output<B>>;
  /** An extra limit beside the API's own; `none` for polls that do not count. */
  rateLimit?: "default" | "sandbox_create" | "agent_invoke" | "none";
  /**
   * Returns the body for 201 if the route declares it, otherwise for the lowest status. Returns `answer(…)` for another
   * status, or `streamed` after it took over `reply`.
   */
  handler: (input: RouteInput<z.output<P>, z.output<Q>, z.output<B>>) => unknown;
}

/** Describes the audit log entry that each request to a route writes. */
export interface AuditRule<P = unknown, Q = unknown, B = unknown> {
  /** `<noun>.<verb in the past>`, such as "file.read". */
  action: string;
  /** Kind of the target, such as "sandbox". */
  kind: string;
  id(params: P): string;
  workspacesOf: (db: Db, ids: readonly string[]) => Promise<readonly { id: string; workspace_id: string }[]>;
  /** Must not hold contents, arguments or secrets. */
  detail?(input: { params: P; query: Q; body: B }): Readonly<Record<string, unknown>>;
}

/** Input of the audit log for a request. */
export interface AuditNote {
  actor: Actor;
  action: string;
  target: { kind: string; id: string; label: null };
  workspace: AuditRule["workspacesOf"];
  detail?: Readonly<Record<string, unknown>>;
}

interface Replay<P = unknown, Q = unknown, B = unknown> {
  /**
   * Activity action that creates the resource. The same transaction records the target's id and the detail with the
   * key, once for each resource. Absent if the handler calls `note` itself.
   */
  activity?: string;
  /**
   * Fields of the response that are stored with the key. Set for responses that change or expire. Default: the whole
   * response is stored.
   */
  keeps?: readonly string[];
  /**
   * Renders the current state as the first request would have. Undefined if the first request left no usable resource;
   * the retry then runs as a new request.
   */
  render: (input: {
    actor: Actor;
    params: P;
    made: readonly [CreatedResource, ...CreatedResource[]];
  }) => unknown;
  /**
   * Streams the first request's result to a repeated request, during the first stream or after it. Without this
   * function, a repeated streaming request must wait until the first has ended.
   */
  stream?: (
    input: Omit<RouteInput<P, Q, B>, "note"> & { made: readonly [CreatedResource, ...CreatedResource[]] },
  ) => Promise<typeof streamed>;
}

/** Keeps the types of a row, while rows of any shape share a list. */
export function defineRoute<
  P extends z.ZodType,
  Q extends z.ZodType,
  B extends z.ZodType,
  S extends z.ZodType,
>(route: RouteDefinition<P, Q, B, S>): Route {
  return route as unknown as Route;
}

export type Route = RouteDefinition;

/** Whether the route can respond with server-sent events. */
export function mayStreamEvents({ events, responses }: Pick<Route, "events" | "responses">): boolean {
  if (events !== undefined) return true;
  return Object.values(responses).some(
    (response) =>
      response !== null && "contentType" in response && response.contentType === "text/event-stream",
  );
}

/** A response with a status other than the first declared, or with extra headers. */
export class Answer {
  readonly status: number;
  readonly body: unknown;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, body: unknown, headers: Readonly<Record<string, string>>) {
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

export function answer(
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): Answer {
  return new Answer(status, body, headers);
}

/** Result of a handler that wrote to `reply.raw` itself. */
export const streamed = Symbol("streamed");
