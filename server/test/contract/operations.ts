/** Every operation of the three OpenAPI documents, with its description and its route. */
import type { Scope } from "#accounts/roles.ts";
import type { Api, Route } from "#http/define-route.ts";
import { openApiDocument } from "#http/documents/openapi.ts";
import type { Routes } from "#http/server.ts";

interface Parameter {
  name: string;
  in: string;
  schema: Schema;
}

/** The parts of JSON Schema that the tests use. */
export interface Schema {
  $ref?: string;
  type?: string;
  format?: string;
  properties?: Record<string, Schema>;
  items?: Schema;
  const?: unknown;
  additionalProperties?: boolean | Schema;
  anyOf?: Schema[];
  oneOf?: Schema[];
  allOf?: Schema[];
}

export interface Operation {
  api: Api;
  id: string;
  method: string;
  path: string;
  route: Route;
  document: {
    security?: unknown[];
    parameters?: Parameter[];
    requestBody?: { content: Record<string, { schema: Schema }> };
    responses: Record<string, { "x-kontor-codes"?: string[]; content?: Record<string, unknown> }>;
    "x-kontor-scope"?: Scope;
  };
  /** Named schemas of the operation's document, by reference. */
  schemas: Record<string, Schema>;
}

export function operationsOf(all: Routes): Operation[] {
  return Object.entries(all).flatMap(([api, routes]) => {
    const { paths, components } = openApiDocument(api as Api, routes) as {
      paths: Record<string, Record<string, Operation["document"] & { operationId: string }>>;
      components: { schemas: Record<string, Schema> };
    };
    const named = Object.entries(components.schemas);
    const schemas = Object.fromEntries(
      named.map(([name, schema]) => [`#/components/schemas/${name}`, schema]),
    );
    return Object.entries(paths).flatMap(([path, item]) =>
      Object.entries(item).map(([method, document]) => ({
        api: api as Api,
        id: document.operationId,
        method: method.toUpperCase(),
        path,
        document,
        schemas,
        route: routes.find(({ operationId }) => operationId === document.operationId)!,
      })),
    );
  });
}

export const isPublic = ({ document }: Operation): boolean => document.security?.length === 0;

export const jsonBodyOf = ({ document }: Operation): Schema | undefined =>
  document.requestBody?.content["application/json"]?.schema;

/** Returns the path with well-formed ids that do not exist. */
export function anyPath({ path, document }: Operation): string {
  return path.replaceAll(/\{(\w+)\}/g, (_, name: string) => {
    const parameter = document.parameters?.find((known) => known.in === "path" && known.name === name);
    return parameter?.schema.format === "uuid" ? "99999999-9999-4999-8999-999999999999" : "x";
  });
}
