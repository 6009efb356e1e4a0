/** Converts operations of the server's own API to tools, and calls them inside the process. */
import { once } from "node:events";
import { z } from "zod";
import type { Route } from "#http/define-route.ts";
import type { HttpServer, Routes } from "#http/server.ts";
import { type ApiRequest, type Operation, type OwnApi, UnfitArguments } from "./workers.ts";
import { type Verb, verbs } from "./verbs.ts";

const toolPrefix = "kontor__";

/**
 * Returns the server's own API. Every request passes the same steps as a request from outside: authentication,
 * validation, limits and the audit log.
 */
export function ownApi(routes: Routes, { fastify }: Pick<HttpServer, "fastify">): OwnApi {
  const known = [...routes.platform, ...routes.sandbox];
  const secrets = new Set(known.flatMap(({ secretFields = [] }) => secretFields));
  return {
    operations: operationsOf(known),
    async send({ method, path, body }, { token, headers, signal }) {
      const request = {
        method,
        url: path,
        headers: {
          ...headers,
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { "content-type": "application/json" }),
        },
        ...(body === undefined ? {} : { payload: body }),
        signal,
      };
      try {
        const { statusCode, payload } = await fastify.inject(request);
        return { status: statusCode, text: withoutSecrets(payload, secrets) };
      } catch (error) {
        signal.throwIfAborted();
        // The process stops. Another process continues the run, so this call must not report an outcome.
        if ((error as NodeJS.ErrnoException).code === "FST_ERR_REOPENED_CLOSE_SERVER")
          await waitForAbort(signal);
        throw error;
      }
    },
  };
}

async function waitForAbort(signal: AbortSignal): Promise<never> {
  if (!signal.aborted) await once(signal, "abort");
  throw signal.reason;
}

/** Returns the operations of the table `verbs` that these routes include. */
function operationsOf(routes: readonly Route[]): Operation[] {
  const byId = new Map(routes.map((route) => [route.operationId, route]));
  return Object.entries(verbs).flatMap(([name, verb]) => {
    const route = byId.get(verb.operation);
    return route ? [operationOf(name, verb, route)] : [];
  });
}

function operationOf(name: string, verb: Verb, route: Route): Operation {
  const { scope, method } = route;
  if (scope === null || scope === "public") throw new Error(`${verb.operation} needs a route with a scope`);
  const names = [...route.path.matchAll(/\{(\w+)\}/g)].map(([, part = ""]) => part);
  const path = fieldsOf(
    route.params ?? z.object(Object.fromEntries(names.map((part) => [part, z.string()]))),
  );
  const query = fieldsOf(route.query);
  const body = fieldsOf(route.body);
  const hidden = new Set(verb.without);
  const all = Object.entries({ ...query.properties, ...body.properties, ...path.properties });
  const required = [...path.required, ...query.required, ...body.required];
  return {
    name: toolPrefix + name,
    description: `${verb.about ?? route.summary}.`,
    parameters: {
      type: "object",
      properties: Object.fromEntries(all.filter(([field]) => !hidden.has(field))),
      required: required.filter((field) => !hidden.has(field)),
      additionalProperties: false,
    },
    scope,
    isRead: method === "GET",
    request: (values) =>
      requestOf(route, { query: Object.keys(query.properties), hasBody: "body" in route }, values),
  };
}

function requestOf(
  { method, path }: Route,
  { query, hasBody }: { query: readonly string[]; hasBody: boolean },
  values: Readonly<Record<string, unknown>>,
): ApiRequest {
  const rest = new Map(Object.entries(values));
  const take = (name: string): unknown => {
    const value = rest.get(name);
    rest.delete(name);
    return value;
  };
  const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const value = take(name);
    // An empty value, `.` or `..` would change the request's path.
    if (typeof value !== "string" || value === "" || value === "." || value === "..")
      throw new UnfitArguments(`${name} must not be empty, . or .. because it is a part of the path`);
    return encodeURIComponent(value.toWellFormed());
  });
  const search = new URLSearchParams();
  for (const name of query) {
    for (const one of [take(name)].flat())
      if (one !== undefined && one !== null) search.append(name, toText(one));
  }
  return {
    method,
    path: search.size > 0 ? `${filled}?${search.toString()}` : filled,
    body: hasBody ? JSON.stringify(Object.fromEntries(rest)) : undefined,
  };
}

const toText = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));

interface Fields {
  properties: Record<string, unknown>;
  required: readonly string[];
}

type Json = Record<string, unknown>;

/** Returns the input fields of an object schema. The result is empty if there is no schema. */
function fieldsOf(schema: z.ZodType | undefined): Fields {
  if (schema === undefined) return { properties: {}, required: [] };
  const { $defs = {}, ...whole } = z.toJSONSchema(schema, {
    io: "input",
    unrepresentable: "any",
    override: ({ jsonSchema }) => {
      if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
      if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
      if (jsonSchema.format !== undefined) delete jsonSchema.pattern;
      delete jsonSchema.id;
    },
  }) as Json & { $defs?: Record<string, Json> };
  const { properties, required } = inlineDefinitions(whole, $defs) as Partial<Fields>;
  return { properties: properties ?? {}, required: required ?? [] };
}

/** Inlines definitions, because some models do not follow references. A recursive part accepts any value. */
function inlineDefinitions(value: unknown, definitions: Readonly<Record<string, Json>>): unknown {
  if (Array.isArray(value)) return value.map((one) => inlineDefinitions(one, definitions));
  if (typeof value !== "object" || value === null) return value;
  const { $ref, ...rest } = value as Json;
  if (typeof $ref !== "string") return mapValues(rest, (inner) => inlineDefinitions(inner, definitions));
  const { [$ref.slice("#/$defs/".length)]: known, ...others } = definitions;
  return mapValues({ ...known, ...rest }, (inner) => inlineDefinitions(inner, others));
}

const mapValues = (record: Json, change: (value: unknown) => unknown): Json =>
  Object.fromEntries(Object.entries(record).map(([name, value]) => [name, change(value)]));

/** Blanks secrets that an operation returns once. Such a secret is for a person, not for a model. */
function withoutSecrets(text: string, names: ReadonlySet<string>): string {
  if (![...names].some((name) => text.includes(`"${name}"`))) return text;
  try {
    const blank = (name: string, value: unknown) => (names.has(name) && value !== null ? "[secret]" : value);
    return JSON.stringify(JSON.parse(text, blank));
  } catch {
    return text;
  }
}
