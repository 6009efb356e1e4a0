/**
 * A route is data: what it takes, what it answers, how it can refuse, and a handler of one expression. The same row
 * registers the route, checks scope and input, renders the answer and writes OpenAPI, so the four cannot disagree.
 */
import type { FastifyReply, FastifyRequest } from "fastify";
import type { z } from "zod";
import type { Actor, Scope } from "#accounts/actor.ts";
import type { ErrorRow } from "#lib/errors.ts";

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
}

export interface RouteDefinition<
  P extends z.ZodType = z.ZodType,
  Q extends z.ZodType = z.ZodType,
  B extends z.ZodType = z.ZodType,
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
  responses: Record<number, z.ZodType | null | { contentType: string; description: string; schema?: z.ZodType }>;
  errors?: readonly ErrorRow<never[]>[];
  /** An addition of ours to the documents; marked `x-kontor-extension` in OpenAPI. */
  extension?: boolean;
  /** Bytes; 1 MiB where absent. */
  bodyLimit?: number;
  /** Takes `Idempotency-Key`: on every POST that creates a row, and on buffered exec. */
  idempotent?: boolean;
  /** Fields of the answer that are never stored for a replay; they are null in one. */
  secretFields?: readonly string[];
  /** Extra token bucket beside the API's own; `none` for polls that do not count. */
  rateLimit?: "default" | "sandbox_create" | "none";
  /** Answers the body, or `streamed` after it took over `reply`. A 201/200 pair is chosen by `status`. */
  handler: (input: RouteInput<z.output<P>, z.output<Q>, z.output<B>>) => unknown;
}

/** Keeps the types of one row while rows of every shape share a list. */
export function defineRoute<P extends z.ZodType, Q extends z.ZodType, B extends z.ZodType>(
  route: RouteDefinition<P, Q, B>,
): Route {
  return route as unknown as Route;
}

export type Route = RouteDefinition;

/** What a handler answers when it has written to `reply.raw` itself. */
export const streamed = Symbol("streamed");
