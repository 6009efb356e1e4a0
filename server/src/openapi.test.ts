import { expect, test } from "vitest";
import type { Api } from "#http/define-route.ts";
import { openApiDocument } from "#http/documents/openapi.ts";
import { introductions } from "./compose/introductions.ts";
import { allRoutes, staleDocuments } from "./openapi.ts";

test("generates exactly the committed OpenAPI documents from the routes", () => {
  expect(staleDocuments(), "run: node server/src/openapi.ts --write").toEqual([]);
});

test("gives every operation of the three APIs a unique name and a unique address", () => {
  const routes = Object.values(allRoutes()).flat();
  for (const names of [
    routes.map(({ operationId }) => operationId),
    routes.map(({ method, path }) => `${method} ${path.replaceAll(/\{\w+\}/g, "{}")}`),
  ]) {
    expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([]);
  }
});

/** A directory has no row, and a repeated request finds the directory that exists. */
const idempotentOfThemselves = ["makeDirectory"];

test("accepts an Idempotency-Key on every route that creates a resource", () => {
  const creating = Object.values(allRoutes())
    .flat()
    .filter(({ method, responses, scope }) => method === "POST" && 201 in responses && scope !== "public");
  const without = creating.filter(({ idempotent }) => !idempotent).map(({ operationId }) => operationId);
  expect(without).toEqual(idempotentOfThemselves);
});

/** Yields the objects of a document with their paths, except for examples. */
function* objectsOf(
  value: unknown,
  path: string,
): Generator<[path: string, object: Record<string, unknown>]> {
  if (typeof value !== "object" || value === null) return;
  if (!Array.isArray(value)) yield [path, value as Record<string, unknown>];
  for (const [key, inner] of Object.entries(value)) {
    if (key !== "example") yield* objectsOf(inner, `${path}/${key}`);
  }
}

const allObjects = Object.entries(allRoutes()).flatMap(([api, routes]) => [
  ...objectsOf(openApiDocument(api as Api, routes, introductions[api as Api]), api),
]);

test("describes every parameter of an operation", () => {
  const parameters = allObjects.filter(([path]) => /\/parameters\/\d+$/.test(path));
  expect(parameters.length).toBeGreaterThan(300);
  const bare = parameters.filter(([, { description }]) => typeof description !== "string");
  expect(bare.map(([path, { name }]) => `${path} ${String(name)}`)).toEqual([]);
});

test("describes every field of a request and a response", () => {
  const fields = allObjects.flatMap(([path, { properties }]) =>
    typeof properties === "object" && properties !== null
      ? Object.entries(properties as Record<string, { description?: string; $ref?: string }>).map(
          ([name, field]) => [`${path}.${name}`, field] as const,
        )
      : [],
  );
  expect(fields.length).toBeGreaterThan(1500);
  const bare = fields.filter(([, { description, $ref }]) => description === undefined && $ref === undefined);
  expect(bare.map(([path]) => path)).toEqual([]);
});

test("begins no sentence of a summary or description with a word that hides its subject", () => {
  const hiding = /(?:^|[.;:] )(?:What|Who|Whose|Whoever|Where|Of|Its|Those|One|That|Also|As) /;
  const texts = allObjects.flatMap(([path, { summary, description }]) =>
    [summary, description].flatMap((text) =>
      typeof text === "string" && hiding.test(text) ? [`${path}: ${text}`] : [],
    ),
  );
  expect(texts).toEqual([]);
});

test("introduces exactly the tags that the operations of each document use", () => {
  for (const [api, routes] of Object.entries(allRoutes())) {
    const introduced = introductions[api as Api].tags.map(([name]) => name);
    expect(introduced.toSorted()).toEqual([...new Set(routes.map(({ tag }) => tag))].toSorted());
  }
});
