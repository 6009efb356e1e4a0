import { expect, test } from "vitest";
import type { Api } from "#http/define-route.ts";
import { openApiDocument } from "#http/openapi.ts";
import { allRoutes, staleDocuments } from "./openapi.ts";

test("the committed OpenAPI documents are those of the routes", () => {
  expect(staleDocuments(), "run: node server/src/openapi.ts --write").toEqual([]);
});

test("an operation's name and its address are its own over the three APIs", () => {
  const routes = Object.values(allRoutes()).flat();
  for (const names of [
    routes.map(({ operationId }) => operationId),
    routes.map(({ method, path }) => `${method} ${path.replaceAll(/\{\w+\}/g, "{}")}`),
  ]) {
    expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([]);
  }
});

/** A directory is no row: making it again finds it made. */
const idempotentOfThemselves = ["makeDirectory"];

test("a route that creates a thing takes an Idempotency-Key", () => {
  const creating = Object.values(allRoutes())
    .flat()
    .filter(({ method, responses, scope }) => method === "POST" && 201 in responses && scope !== "public");
  const without = creating.filter(({ idempotent }) => !idempotent).map(({ operationId }) => operationId);
  expect(without).toEqual(idempotentOfThemselves);
});

test("gives every parameter of an operation a name and a location", () => {
  const parameters = Object.entries(allRoutes()).flatMap(([api, routes]) => {
    const { paths } = openApiDocument(api as Api, routes) as {
      paths: Record<string, Record<string, { parameters?: unknown[] }>>;
    };
    return Object.values(paths)
      .flatMap((item) => Object.values(item))
      .flatMap((operation) => operation.parameters ?? []);
  });
  expect(parameters.length).toBeGreaterThan(100);
  const named = { name: expect.any(String), in: expect.any(String) };
  for (const parameter of parameters) expect(parameter).toMatchObject(named);
});
