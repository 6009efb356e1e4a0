/**
 * A route is data: what it takes, what it answers, how it can refuse, and a handler of one expression. The same row
 * registers the route, checks scope and input, renders the answer and writes OpenAPI, so the four cannot disagree.
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import type { z } from "zod";
import type { Actor, Scope } from "#accounts/actor.ts";
import type { Db } from "#db/db.ts";
import type { ErrorRow } from "#lib/errors.ts";
import type { Made } from "./idempotency.ts";
import type { Socket } from "./web-socket.ts";

export type Api = "platform" | "sandbox" | "agent";
export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

/** What a handler gets. `reply` only for streams: everything else is returned. */
export interface RouteInput<P, Q, B> {
  actor: Actor;
  params: P;
  query: Q;
  body: B;
  request: FastifyRequest;
  reply: FastifyReply;
  /**
   * What is made, in the transaction that makes it, where no deed tells of it: a retry with the same `Idempotency-Key`
   * is answered by `replay` even where this server dies before it answers. Without a key it does nothing.
   */
  note: (tx: Db, made: Made) => Promise<void>;
}

/** The name of what we speak on sockets of our own, for whoever must name something (browsers with a token). */
export const subprotocol = "kontor";

/** A WebSocket that a GET opens. */
export interface SocketDefinition<P extends z.ZodType = z.ZodType, Q extends z.ZodType = z.ZodType> {
  summary: string;
  description: string;
  /** Opening one may need another than the route itself. */
  scope: Scope;
  /** Of the handshake. */
  query: Q;
  /** One text message, to the server and from it. Binary ones are `description`'s matter. */
  takes: z.ZodType;
  sends: z.ZodType;
  errors: readonly ErrorRow<never[]>[];
  audit?: Audited<z.output<P>, z.output<Q>, undefined>;
  /** What it throws is an ordinary answer; what it returns is given the socket. */
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
  /** With `{name}` parameters as in the documents: `/v1/sandboxes/{id}/exec`. */
  path: string;
  /** Unique over the three documents, camelCase: the SDK's method name. */
  operationId: string;
  tag: string;
  summary: string;
  description?: string;
  /** Null: any valid credential (each such route guards itself); `"public"`: none needed. */
  scope: Scope | null | "public";
  params?: P;
  query?: Q;
  body?: B;
  /** Success status → schema, or null for no body, or a media type for what is not JSON. */
  responses: Record<
    number,
    z.ZodType | null | { contentType: string; description: string; schema?: z.ZodType }
  >;
  /** One `data:` line of the server-sent events that the route may answer instead of its first success. */
  events?: z.ZodType;
  /** What is opened instead where the request is a WebSocket's handshake. */
  socket?: SocketDefinition<P, S>;
  errors?: readonly ErrorRow<never[]>[];
  /** An addition of ours to the documents; marked `x-kontor-extension` in OpenAPI. */
  extension?: boolean;
  /** Bytes; 1 MiB where absent. */
  bodyLimit?: number;
  /** `stream`: the body is not read; the handler takes `request.raw`. Needs a `Content-Length` (411). JSON where absent. */
  bodyType?: "json" | "stream";
  /** Whether a suspended workspace may write. By default only a DELETE may, because it frees resources. */
  whileSuspended?: boolean;
  /** A write that a viewer of the team may make: it concerns the caller alone. */
  allowsViewers?: boolean;
  /** Fields of the record itself that a PATCH accepts and ignores, so that GET → change → PATCH works. */
  readOnlyFields?: readonly string[];
  /** Takes `Idempotency-Key`: on every POST that creates a row, and on buffered exec (a function of the body). */
  idempotent?: boolean | ((body: z.output<B>) => boolean);
  /** How a retry is answered whose first request made something and stored no answer, or not all of it. */
  replay?: Replay<z.output<P>, z.output<Q>, z.output<B>>;
  /** The operation exists to return a secret: 403 `secrets_hidden` for a caller that may not read secrets. */
  needsSecrets?: boolean;
  /** Fields of the answer that are never stored for a replay; they are null in one. */
  secretFields?: readonly string[];
  /** Audits reads and runs, which change no record, when a valid request reaches the handler. */
  audit?: Audited<z.output<P>, z.output<Q>, z.output<B>>;
  /** An extra limit beside the API's own; `none` for polls that do not count. */
  rateLimit?: "default" | "sandbox_create" | "agent_invoke" | "none";
  /** Answers the body for 201 where it is declared, else for the lowest status, `answer(…)` for another one, or `streamed` after it took over `reply`. */
  handler: (input: RouteInput<z.output<P>, z.output<Q>, z.output<B>>) => unknown;
}

/** An entry of the audit log for each request to a route. */
export interface Audited<P = unknown, Q = unknown, B = unknown> {
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
  workspace: Audited["workspacesOf"];
  detail?: Readonly<Record<string, unknown>>;
}

export interface Replay<P = unknown, Q = unknown, B = unknown> {
  /**
   * What makes it, as the activity log calls it: in its transaction the target's id and the detail are noted with the
   * key, once for each that is made. Absent where the handler notes by itself.
   */
  deed?: string;
  /** Of an answer that changes or goes, what alone is stored and rendered from; all of it is stored where absent. */
  keeps?: readonly string[];
  /** As things are by then, answered as the first would have been. Undefined: it came to nothing, and is begun anew. */
  render: (input: { actor: Actor; params: P; made: readonly [Made, ...Made[]] }) => unknown;
  /**
   * Streams the first request's result to a repeated request, during the first stream or after it. If absent, a
   * streaming request can be repeated only after the first one has ended.
   */
  stream?: (
    input: Omit<RouteInput<P, Q, B>, "note"> & { made: readonly [Made, ...Made[]] },
  ) => Promise<typeof streamed>;
}

/** Keeps the types of one row while rows of every shape share a list. */
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

/** An answer with a status other than the first declared one, or with headers of its own. */
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

/** What a handler answers when it has written to `reply.raw` itself. */
export const streamed = Symbol("streamed");
