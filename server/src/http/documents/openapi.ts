/**
 * Generates the OpenAPI 3.1 document of an API from its routes. A schema with an id (`.meta({ id: "ProjectCreate" })`)
 * becomes a component of exactly that name. A schema that differs as input and output is rejected, because it would
 * need two names.
 */
import { z } from "zod";
import { accountSuspended, insufficientRole } from "#accounts/errors.ts";
import type { ErrorRow } from "#lib/errors.ts";
import { refusesSuspended, refusesViewers } from "../authenticate.ts";
import {
  type Api,
  mayStreamEvents,
  type Route,
  type SocketDefinition,
  subprotocol,
} from "../define-route.ts";
import {
  badHandshake,
  idempotencyConflict,
  idempotencyInProgress,
  lengthRequired,
  missingScope,
  payloadTooLarge,
  rateLimited,
  secretsHidden,
  tooManyStreams,
  unauthenticated,
  unsupportedMediaType,
} from "../errors.ts";
import { definitionOf, shapeOf, unwrap } from "../input/schema-walk.ts";

type Json = Record<string, unknown>;

const titles: Record<Api, string> = {
  platform: "Kontor Platform API",
  sandbox: "Kontor Sandbox API",
  agent: "Kontor Agent Runtime API",
};

const messageSchema: Json = {
  type: "string",
  description: "The error in one sentence: a string on every API, even if `detail` is a list.",
};

const errorSchema: Json = {
  type: "object",
  description: "An error. Some codes add fields, such as `retry_after` or `limit`.",
  properties: {
    detail: { type: "string", description: "Cause of the error, and the cure." },
    message: messageSchema,
    code: { type: "string", description: "Stable code for programs." },
  },
  required: ["detail", "message", "code"],
};

/** FastAPI's validation schemas, with our `code`. */
const validationSchemas: Record<string, Json> = {
  HTTPValidationError: {
    type: "object",
    title: "HTTPValidationError",
    properties: {
      detail: {
        type: "array",
        title: "Detail",
        description: "All errors of the input.",
        items: { $ref: "#/components/schemas/ValidationError" },
      },
      message: messageSchema,
      code: { type: "string", description: "Always `validation_error`.", const: "validation_error" },
    },
    required: ["detail", "message", "code"],
  },
  ValidationError: {
    type: "object",
    title: "ValidationError",
    properties: {
      loc: {
        type: "array",
        title: "Location",
        description: "Path to the field, such as `body`, `services`, 0, `port`.",
        items: { anyOf: [{ type: "string" }, { type: "integer" }] },
      },
      msg: { type: "string", title: "Message", description: "The error in words." },
      type: { type: "string", title: "Error Type", description: "A word for programs, such as `missing`." },
    },
    required: ["loc", "msg", "type"],
  },
};

const invalidRequestSchema = (api: Api): Json => ({
  type: "object",
  description: "The input is invalid; `detail` names the first field, and `errors` lists all fields.",
  properties: {
    detail: { type: "string", description: "The first error: field and message." },
    message: messageSchema,
    code: { type: "string", description: "Always `invalid_request`.", const: "invalid_request" },
    ...(api === "agent"
      ? { pointer: { type: "string", description: "JSON pointer (RFC 6901) of the first fault." } }
      : {}),
    errors: {
      type: "array",
      description: "All errors of the input.",
      items: {
        type: "object",
        properties: {
          field: { type: "string", description: "Path to the field, such as `files[2].path`." },
          message: { type: "string", description: "The error in words." },
          ...(api === "agent"
            ? { pointer: { type: "string", description: "JSON pointer (RFC 6901) of the field." } }
            : {}),
        },
        required: ["field", "message"],
      },
    },
  },
  required: ["detail", "message", "code"],
});

/** Text before the operations, in Markdown, and the tags in the order of the document: name and description. */
export interface Introduction {
  readonly description: string;
  readonly tags: readonly (readonly [name: string, description: string])[];
  /** Called when the document is generated. */
  readonly examples?: () => Examples;
}

/** Examples of an API's operations, by `operationId`. */
export type Examples = Readonly<Record<string, OperationExample>>;

export interface OperationExample {
  /** Values of path and query parameters. */
  readonly parameters?: Readonly<Record<string, unknown>>;
  /** Request body; text if the media type is not JSON. */
  readonly request?: unknown;
  /** Maps a status to a JSON body, or null for none: the successes, and an error that a client should expect. */
  readonly responses: Readonly<Record<string, unknown>>;
  /** First lines of the `text/event-stream` response. */
  readonly events?: readonly string[];
  /** Text messages of the WebSocket: `takes` from the client, `sends` from the server. */
  readonly socket?: { readonly takes: unknown; readonly sends: unknown };
}

export function openApiDocument(api: Api, routes: readonly Route[], introduction?: Introduction): Json {
  const components = new Components();
  components.add("Error", errorSchema);
  if (api === "platform")
    for (const [name, schema] of Object.entries(validationSchemas)) components.add(name, schema);
  else components.add("InvalidRequest", invalidRequestSchema(api));
  const paths: Record<string, Json> = {};
  const examples = introduction?.examples?.();
  for (const route of routes) {
    const item = (paths[route.path] ??= {});
    const described = operation(route, components);
    const example = examples?.[route.operationId];
    item[route.method.toLowerCase()] = example ? withExample(described, example) : described;
  }
  return {
    openapi: "3.1.0",
    info: {
      title: titles[api],
      version: "0.1.0",
      ...(introduction && { description: introduction.description }),
      license: { name: "Apache-2.0", identifier: "Apache-2.0" },
    },
    servers: [{ url: "/" }],
    security: [{ apiToken: [] }],
    ...(introduction && {
      tags: introduction.tags.map(([name, description]) => ({ name, description })),
    }),
    paths,
    components: {
      schemas: components.sorted(),
      securitySchemes: {
        apiToken: { type: "http", scheme: "bearer", description: "An API token: `svc_` and 40 characters." },
      },
    },
  };
}

/** Named schemas of one document. */
class Components {
  readonly #schemas = new Map<string, Json>();

  add(name: string, schema: Json): void {
    const known = this.#schemas.get(name);
    if (known && JSON.stringify(known) !== JSON.stringify(schema)) {
      throw new Error(`the component ${name} differs as input and output; give each schema an id`);
    }
    this.#schemas.set(name, schema);
  }

  /** Converts the schema to JSON Schema, and moves named parts to the components. */
  convert(schema: z.ZodType, io: "input" | "output"): Json {
    // The wrapper object makes a schema with an id come out as a reference too.
    const whole = z.toJSONSchema(z.object({ schema }), {
      io,
      unrepresentable: "any",
      override: tidy(io),
    }) as unknown as {
      properties: { schema: Json };
      $defs?: Record<string, Json>;
    };
    for (const [name, definition] of Object.entries(whole.$defs ?? {})) this.add(name, relocate(definition));
    return relocate(whole.properties.schema);
  }

  sorted(): Json {
    return Object.fromEntries([...this.#schemas].toSorted(([a], [b]) => (a < b ? -1 : 1)));
  }
}

/**
 * Drops Zod's own additions (the safe-integer bounds, the 400-character pattern of a time). Forbids unknown fields in
 * inputs. Outputs stay open, so that fields can be added later.
 */
function tidy(io: "input" | "output") {
  return ({
    zodSchema,
    jsonSchema,
  }: {
    zodSchema: z.core.$ZodType;
    jsonSchema: z.core.JSONSchema.BaseSchema;
  }): void => {
    if (jsonSchema.maximum === Number.MAX_SAFE_INTEGER) delete jsonSchema.maximum;
    if (jsonSchema.minimum === Number.MIN_SAFE_INTEGER) delete jsonSchema.minimum;
    if (jsonSchema.format !== undefined) delete jsonSchema.pattern;
    delete jsonSchema.id;
    if (definitionOf(zodSchema).type !== "object" || typeof jsonSchema.additionalProperties === "object")
      return;
    if (io === "input") jsonSchema.additionalProperties ??= false;
    else delete jsonSchema.additionalProperties;
  };
}

function relocate(schema: Json): Json {
  return JSON.parse(JSON.stringify(schema).replaceAll('"#/$defs/', '"#/components/schemas/')) as Json;
}

function operation(route: Route, components: Components): Json {
  const parameters = [
    ...pathParameters(route, components),
    ...queryParameters(route, components),
    ...(route.idempotent ? [idempotencyHeader] : []),
  ];
  return {
    operationId: route.operationId,
    tags: [route.tag],
    summary: route.summary,
    ...(route.description === undefined ? {} : { description: route.description }),
    ...(route.extension ? { "x-kontor-extension": true } : {}),
    ...(route.scope === null || route.scope === "public" ? {} : { "x-kontor-scope": route.scope }),
    ...(route.scope === "public" ? { security: [] } : {}),
    ...(parameters.length > 0 ? { parameters } : {}),
    ...requestBody(route, components),
    responses: { ...successes(route, components), ...refusals(route) },
    ...(route.socket ? { "x-kontor-websocket": describeSocket(route, route.socket, components) } : {}),
  };
}

interface Content {
  content?: Record<string, Json>;
}

/** Returns a copy of the operation with `example` beside the schema of each parameter, body and response. */
function withExample(described: Json, example: OperationExample): Json {
  const {
    parameters,
    requestBody,
    responses,
    "x-kontor-websocket": socket,
  } = described as {
    parameters?: (Json & { name: string })[];
    requestBody?: Json & Content;
    responses: Record<string, Json & Content>;
    "x-kontor-websocket"?: Json;
  };
  const valueOf = (mediaType: string, value: unknown) =>
    mediaType === "text/event-stream" ? example.events && eventText(example.events) : value;
  const withValue = (body: Json & Content, value: unknown) => ({
    ...body,
    ...(body.content && {
      content: Object.fromEntries(
        Object.entries(body.content).map(([mediaType, media]) => {
          const shown = valueOf(mediaType, value);
          return [mediaType, shown === undefined ? media : { ...media, example: shown }];
        }),
      ),
    }),
  });
  return {
    ...described,
    ...(parameters && {
      parameters: parameters.map((parameter) => {
        const value = example.parameters?.[parameter.name];
        return value === undefined ? parameter : { ...parameter, example: value };
      }),
    }),
    ...(requestBody && { requestBody: withValue(requestBody, example.request) }),
    responses: Object.fromEntries(
      Object.entries(responses).map(([status, response]) => [
        status,
        withValue(response, example.responses[status]),
      ]),
    ),
    ...(socket && {
      "x-kontor-websocket": { ...socket, ...(example.socket && { example: example.socket }) },
    }),
  };
}

/** Formats server-sent events as a client receives them. */
export function eventText(lines: readonly string[]): string {
  return lines.map((line) => `${line}\n`).join("");
}

/**
 * Describes a WebSocket in an extension field, because OpenAPI has none: the handshake's input, and the text messages
 * of both sides.
 */
function describeSocket(route: Route, socket: SocketDefinition, components: Components): Json {
  return {
    summary: socket.summary,
    description: socket.description,
    subprotocols: [subprotocol],
    "x-kontor-scope": socket.scope,
    parameters: [
      ...pathParameters(route, components),
      ...queryParameters({ ...route, query: socket.query }, components),
    ],
    takes: components.convert(socket.takes, "input"),
    sends: components.convert(socket.sends, "output"),
    responses: {
      101: { description: "Switching Protocols" },
      ...refusals({ ...route, query: socket.query, errors: [...socket.errors, badHandshake] }),
    },
  };
}

const idempotencyHeader: Json = {
  name: "Idempotency-Key",
  in: "header",
  required: false,
  description: "A repeat of the same key, token and request within 24 hours gets the first response.",
  schema: { type: "string", minLength: 1, maxLength: 128 },
};

function pathParameters(route: Route, components: Components): Json[] {
  const shape = route.params ? shapeOf(route.params) : undefined;
  return [...route.path.matchAll(/\{(\w+)\}/g)].map(([, name]) => {
    const field = (shape?.[name!] as z.ZodType | undefined) ?? z.string();
    const { description, ...schema } = components.convert(field, "input");
    return {
      name,
      in: "path",
      required: true,
      ...(description === undefined ? {} : { description }),
      schema,
    };
  });
}

function queryParameters(route: Route, components: Components): Json[] {
  const shape = route.query ? (shapeOf(route.query) ?? {}) : {};
  return Object.entries(shape).map(([name, field]) => {
    const isDeep = ["record", "object"].includes(definitionOf(unwrap(field)).type);
    const { description, ...schema } = components.convert(field as z.ZodType, "input");
    return {
      name,
      in: "query",
      required: !(field as z.ZodType).safeParse(undefined).success,
      ...(description === undefined ? {} : { description }),
      ...(isDeep ? { style: "deepObject", explode: true } : {}),
      schema,
    };
  });
}

function requestBody(route: Route, components: Components): Json {
  if (route.bodyType === "stream") {
    return { requestBody: { required: true, content: { "application/octet-stream": { schema: {} } } } };
  }
  if (!route.body) return {};
  const required = !route.body.safeParse(undefined).success;
  return {
    requestBody: {
      required,
      content: { "application/json": { schema: components.convert(route.body, "input") } },
    },
  };
}

function successes(route: Route, components: Components): Json {
  return Object.fromEntries(
    Object.entries(route.responses).map(([status, response]) => {
      const description = { 201: "Created", 202: "Accepted", 204: "Done; no content" }[status] ?? "OK";
      if (response === null) return [status, { description }];
      if (response instanceof z.ZodType) {
        const json = { "application/json": { schema: components.convert(response, "output") } };
        const events = route.events && {
          "text/event-stream": { schema: components.convert(route.events, "output") },
        };
        return [status, { description, content: { ...json, ...events } }];
      }
      const schema = response.schema ? components.convert(response.schema, "output") : { type: "string" };
      return [status, { description: response.description, content: { [response.contentType]: { schema } } }];
    }),
  );
}

/** Returns the errors that apply to a route without being declared in its row. */
function commonRows(route: Route): ErrorRow<never[]>[] {
  const takesBody = route.body !== undefined;
  return [
    ...(route.scope === "public" ? [] : [unauthenticated]),
    ...(route.scope === null || route.scope === "public" ? [] : [missingScope]),
    ...(route.needsSecrets ? [secretsHidden] : []),
    ...(refusesViewers(route) ? [insufficientRole] : []),
    ...(refusesSuspended(route) ? [accountSuspended] : []),
    ...(route.idempotent ? [idempotencyConflict, idempotencyInProgress] : []),
    ...(route.bodyType === "stream" ? [lengthRequired, payloadTooLarge] : []),
    ...(takesBody ? [payloadTooLarge, unsupportedMediaType] : []),
    // A route without a rate limit still counts unknown credentials.
    ...(route.rateLimit === "none" && route.scope === "public" ? [] : [rateLimited]),
    ...(mayStreamEvents(route) || route.socket ? [tooManyStreams] : []),
  ] as ErrorRow<never[]>[];
}

function refusals(route: Route): Json {
  const codes = new Map<number, Set<string>>();
  for (const { status, code } of [...commonRows(route), ...(route.errors ?? [])]) {
    codes.set(status, (codes.get(status) ?? new Set()).add(code));
  }
  // Every operation refuses an unknown query parameter.
  const invalid = route.api === "platform" ? 422 : 400;
  const code = route.api === "platform" ? "validation_error" : "invalid_request";
  codes.set(invalid, new Set([code, ...(codes.get(invalid) ?? [])]));
  return Object.fromEntries(
    [...codes]
      .toSorted(([a], [b]) => a - b)
      .map(([status, names]) => {
        const isInvalid = status === invalid;
        const named = isInvalid
          ? route.api === "platform"
            ? "HTTPValidationError"
            : "InvalidRequest"
          : "Error";
        const reference = { $ref: `#/components/schemas/${named}` };
        const isMixed = isInvalid && names.size > 1;
        const schema = isMixed ? { anyOf: [reference, { $ref: "#/components/schemas/Error" }] } : reference;
        return [
          status,
          {
            description: [...names].map((name) => `\`${name}\``).join(", "),
            "x-kontor-codes": [...names],
            content: { "application/json": { schema } },
          },
        ];
      }),
  );
}
