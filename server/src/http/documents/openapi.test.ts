import { expect, test } from "vitest";
import { z } from "zod";
import { defineError } from "#lib/errors.ts";
import { defineRoute, type Route } from "../define-route.ts";
import { openApiDocument } from "./openapi.ts";

const full = defineError("harbour_full", 409, () => "No berth is free.");
const Berth = z.object({ number: z.int(), at: z.iso.datetime() }).meta({ id: "Berth" });
const ShipCreate = z
  .object({ name: z.string().default("Hansa"), cargo: z.record(z.string(), z.string()).optional() })
  .meta({ id: "ShipCreate" });
const Ship = z.object({ id: z.string(), berth: Berth.nullable() }).meta({ id: "ShipResponse" });

const route = (more: Partial<Route> = {}): Route => ({
  ...defineRoute({
    api: "platform",
    method: "POST",
    path: "/api/v1/ships/{id}",
    operationId: "makeShip",
    tag: "Ships",
    summary: "Make a ship",
    scope: "platform:write",
    extension: true,
    query: z.object({
      metadata: z.record(z.string(), z.string()).optional(),
      limit: z.int().min(1).default(5),
    }),
    body: ShipCreate,
    responses: { 201: Ship, 204: null },
    errors: [full],
    idempotent: true,
    handler: () => null,
  }),
  ...more,
});

// oxlint-disable-next-line typescript/no-explicit-any -- a document's shape is what these tests are about
const writeDocument = (one: Route): any => openApiDocument(one.api, [one]);

test("names components exactly as their schemas, nested schemas included", () => {
  const { schemas } = writeDocument(route()).components;
  expect(Object.keys(schemas)).toEqual([
    "Berth",
    "Error",
    "HTTPValidationError",
    "ShipCreate",
    "ShipResponse",
    "ValidationError",
  ]);
  expect(schemas.ShipResponse.properties.berth).toEqual({
    anyOf: [{ $ref: "#/components/schemas/Berth" }, { type: "null" }],
  });
  expect(schemas.Berth.properties).toEqual({
    number: { type: "integer" },
    at: { type: "string", format: "date-time" },
  });
});

test("forbids unknown fields in inputs, does not require fields with a default, and leaves outputs open", () => {
  const { schemas } = writeDocument(route()).components;
  expect(schemas.ShipCreate.additionalProperties).toBe(false);
  expect(schemas.ShipCreate.required).toBeUndefined();
  expect(schemas.ShipCreate.properties.cargo.additionalProperties).toEqual({ type: "string" });
  expect(schemas.ShipResponse.additionalProperties).toBeUndefined();
});

test("rejects a component name that two different schemas share", () => {
  const both = route({ responses: { 201: ShipCreate } });
  expect(() => writeDocument(both)).toThrow("the component ShipCreate differs as input and output");
});

test("documents defaults of a query, and keys in brackets as a deep object", () => {
  const { parameters } = writeDocument(route()).paths["/api/v1/ships/{id}"].post;
  expect(parameters).toMatchObject([
    { name: "id", in: "path", required: true },
    { name: "metadata", in: "query", required: false, style: "deepObject", explode: true },
    { name: "limit", in: "query", required: false, schema: { type: "integer", minimum: 1, default: 5 } },
    { name: "Idempotency-Key", in: "header" },
  ]);
});

test("documents all errors of a route by status and code", () => {
  const operation = writeDocument(route()).paths["/api/v1/ships/{id}"].post;
  expect(operation["x-kontor-extension"]).toBe(true);
  const codes = Object.fromEntries(
    Object.entries<Record<string, string[]>>(operation.responses).map(
      ([status, { "x-kontor-codes": names }]) => [status, names],
    ),
  );
  expect(codes).toEqual({
    201: undefined,
    204: undefined,
    401: ["unauthenticated"],
    402: ["account_suspended"],
    403: ["missing_scope", "insufficient_role"],
    409: ["idempotency_conflict", "idempotency_in_progress", "harbour_full"],
    413: ["payload_too_large"],
    415: ["unsupported_media_type"],
    422: ["validation_error"],
    429: ["rate_limited"],
  });
});

test("declares the error for an unknown query on an operation without parameters", () => {
  const bare = route({ path: "/ships", method: "GET" });
  delete bare.query;
  delete bare.body;
  expect(writeDocument(bare).paths["/ships"].get.responses["422"]).toBeDefined();
  expect(writeDocument({ ...bare, api: "sandbox" }).paths["/ships"].get.responses["400"]).toBeDefined();
});

test("requires no token on a public route", () => {
  const operation = writeDocument(route({ scope: "public" })).paths["/api/v1/ships/{id}"].post;
  expect(operation.security).toEqual([]);
  expect(Object.keys(operation.responses)).not.toContain("401");
});

test("shows an example beside the schema of each parameter, body and stream, and leaves the rest unchanged", () => {
  const one = route({ events: z.object({ at: z.string() }) });
  const example = {
    parameters: { id: "berth-4" },
    request: { name: "Hansa" },
    responses: { 201: { id: "ship-7", berth: null }, 409: { detail: "No berth is free." } },
    events: ["id: 1", 'data: {"at":"2030-01-01T00:00:00Z"}', ""],
  };
  const introduction = { description: "", tags: [], examples: () => ({ makeShip: example }) };
  // oxlint-disable-next-line typescript/no-explicit-any -- as above
  const { post } = (openApiDocument("platform", [one], introduction) as any).paths["/api/v1/ships/{id}"];
  expect(post.parameters[0].example).toBe("berth-4");
  expect("example" in post.parameters[1]).toBe(false);
  expect(post.requestBody.content["application/json"].example).toEqual({ name: "Hansa" });
  expect(post.responses["201"].content).toMatchObject({
    "application/json": { example: { id: "ship-7", berth: null } },
    "text/event-stream": { example: 'id: 1\ndata: {"at":"2030-01-01T00:00:00Z"}\n\n' },
  });
  expect(post.responses["409"].content["application/json"].example).toEqual({ detail: "No berth is free." });
  const withoutExamples = JSON.parse(
    JSON.stringify(post, (key, value) => (key === "example" ? undefined : value)),
  );
  expect(withoutExamples).toEqual(writeDocument(one).paths["/api/v1/ships/{id}"].post);
});
