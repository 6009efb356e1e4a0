/** Keeps every operation's example complete, valid and free of real secrets. */
import type { Schema } from "@cfworker/json-schema";
import { describe, expect, test } from "vitest";
import type { Api } from "#http/define-route.ts";
import { eventText, type OperationExample, openApiDocument } from "#http/documents/openapi.ts";
import { introductions } from "../compose/introductions.ts";
import { allRoutes } from "../openapi.ts";
import { refusalsOf } from "./check.ts";
import { readExamples } from "./examples.ts";

interface Media {
  schema: Schema;
  example?: unknown;
}

interface Body {
  content?: Record<string, Media>;
}

interface Operation {
  operationId: string;
  parameters?: { name: string; in: string; required: boolean; schema: Schema; example?: unknown }[];
  requestBody?: Body;
  responses: Record<string, Body & { "x-kontor-codes"?: string[] }>;
  "x-kontor-websocket"?: { takes: Schema; sends: Schema; example?: OperationExample["socket"] };
}

interface DescribedOperation {
  api: Api;
  operation: Operation;
  components: Record<string, Schema>;
}

const described: DescribedOperation[] = Object.entries(allRoutes()).flatMap(([name, routes]) => {
  const api = name as Api;
  const { paths, components } = openApiDocument(api, routes, introductions[api]) as {
    paths: Record<string, Record<string, Operation>>;
    components: { schemas: Record<string, Schema> };
  };
  return Object.values(paths).flatMap((item) =>
    Object.values(item).map((operation) => ({ api, operation, components: components.schemas })),
  );
});

const titled = described.map((one) => ({ id: one.operation.operationId, ...one }));

function faultsOf(value: unknown, schema: Schema, components: Record<string, Schema>): string[] {
  return refusalsOf(value, schema, components).map(
    ({ instanceLocation, error }) => `${instanceLocation}: ${error}`,
  );
}

/** JSON of each `data:` line. */
function dataOf(events: string): unknown[] {
  return [...events.matchAll(/^data: (.*)$/gm)].map(([, data]) => JSON.parse(data!) as unknown);
}

test("has an example for each operation, and an operation for each example", () => {
  for (const api of ["platform", "sandbox", "agent"] as const) {
    const operations = described
      .filter((one) => one.api === api)
      .map(({ operation }) => operation.operationId);
    const examples = Object.keys(readExamples(api)).toSorted();
    expect(examples, "add or remove examples as server/src/examples/examples.ts describes").toEqual(
      operations.toSorted(),
    );
  }
});

describe.each(titled)("$id", ({ api, operation, components }) => {
  const example = readExamples(api)[operation.operationId];

  test("shows each body, stream and path parameter", () => {
    const bodies = Object.entries(operation.responses)
      .filter(([status]) => status < "300")
      .map(([, response]) => response);
    if (operation.requestBody) bodies.push(operation.requestBody);
    const media = bodies.flatMap(({ content = {} }) => Object.entries(content));
    expect(media.filter(([, one]) => one.example === undefined).map(([type]) => type)).toEqual([]);
    const required = (operation.parameters ?? []).filter((one) => one.required);
    expect(required.filter((one) => one.example === undefined).map(({ name }) => name)).toEqual([]);
    if (operation["x-kontor-websocket"]) expect(operation["x-kontor-websocket"].example).toBeDefined();
  });

  test("is valid by the schemas of the document", () => {
    const faults = (operation.parameters ?? [])
      .filter((one) => one.example !== undefined)
      .flatMap((one) => faultsOf(one.example, one.schema, components));
    for (const { content = {} } of [operation.requestBody ?? {}, ...Object.values(operation.responses)]) {
      for (const [type, media] of Object.entries(content)) {
        if (media.example === undefined) continue;
        const values =
          type === "text/event-stream" && media.schema.type !== "string"
            ? dataOf(media.example as string)
            : [media.example];
        if (values.length === 0) faults.push(`${type}: has no event`);
        for (const value of values) faults.push(...faultsOf(value, media.schema, components));
      }
    }
    const socket = operation["x-kontor-websocket"];
    if (socket?.example) {
      faults.push(...faultsOf(socket.example.takes, socket.takes, components));
      faults.push(...faultsOf(socket.example.sends, socket.sends, components));
    }
    expect(faults).toEqual([]);
  });

  test("names only parameters, statuses and error codes that the operation has", () => {
    const known = (operation.parameters ?? []).map(({ name }) => name);
    expect(Object.keys(example?.parameters ?? {}).filter((name) => !known.includes(name))).toEqual([]);
    for (const [status, body] of Object.entries(example?.responses ?? {})) {
      expect(Object.keys(operation.responses)).toContain(status);
      if (status < "400") continue;
      expect(operation.responses[status]?.["x-kontor-codes"]).toContain((body as { code: string }).code);
    }
    if (example?.request !== undefined) expect(operation.requestBody).toBeDefined();
  });

  test("holds no secret that looks real, no host of a test and no name of a test", () => {
    const text = JSON.stringify(example);
    const secrets = [
      ...text.matchAll(/\b(?:svc|fnk|whsec)_([A-Za-z0-9+/]{20,})/g),
      ...text.matchAll(/"(?:secret|token|api_key|auth_secret|(?:current_|new_)?password)":"([^"]+)"/g),
      ...text.matchAll(/:\/\/[^:/"]+:([^@/"]+)@/g),
      ...text.matchAll(/svc_sig=([\w-]+)/g),
    ].map(([, secret]) => secret!);
    expect(secrets.filter((secret) => !/example/i.test(secret))).toEqual([]);
    expect(text).not.toMatch(
      /localhost|127\.0\.0\.1|\.test\b|\.invalid\b|doesnotexist|"(?:x|a|m|test)"|(?<!"type":)"string"|\b(?:made|case|set|volume|function|server)-\d+"/,
    );
  });
});

test("writes a stream's lines as they arrive", () => {
  expect(eventText(["id: 1", 'data: {"kind":"log"}', ""])).toBe('id: 1\ndata: {"kind":"log"}\n\n');
});
