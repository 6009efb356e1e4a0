/**
 * Records the examples of the API documents from the contract cases: see server/src/examples/examples.ts. Runs only if
 * `KONTOR_RECORD_EXAMPLES` is set, because it writes into the source tree.
 */
import { writeFileSync } from "node:fs";
import type { Schema } from "@cfworker/json-schema";
import { expect, test } from "vitest";
import { refusalsOf } from "#examples/check.ts";
import { examplesFile, readExamples } from "#examples/examples.ts";
import type { Examples, OperationExample } from "#http/documents/openapi.ts";
import { send } from "./calls.ts";
import type { Call, Case } from "./cases/case.ts";
import { cases } from "./cases/all.ts";
import { completeValue, stable } from "./examples.ts";
import { isPublic, jsonBodyOf, type Operation, operationsOf } from "./operations.ts";
import type { Reply, World } from "./world.ts";

const isRecording = process.env["KONTOR_RECORD_EXAMPLES"] !== undefined;

/** The world is opened here, because its hooks must be registered while the file is collected. */
const world = isRecording ? await (await import("./world.ts")).openWorld() : undefined;

test.runIf(isRecording)(
  "records examples of operations without an example, and fields that examples lack",
  { timeout: 600_000, retry: 0 },
  async () => {
    const all = operationsOf(world!.routes);
    const failed: string[] = [];
    for (const api of ["platform", "sandbox", "agent"] as const) {
      const known = readExamples(api);
      const found: Record<string, OperationExample> = {};
      for (const operation of all.filter((one) => one.api === api)) {
        const { id } = operation;
        try {
          found[id] = await exampleOf(operation, known[id]);
          failed.push(...remaining(operation, found[id]).map((fault) => `${id}: ${fault}; edit the example`));
        } catch (error) {
          if (known[id]) found[id] = known[id];
          failed.push(`${id}: ${String(error)}`);
        }
      }
      writeFileSync(examplesFile(api), `${JSON.stringify(found satisfies Examples, null, 2)}\n`);
    }
    expect(failed).toEqual([]);
  },
);

async function exampleOf(
  operation: Operation,
  known: OperationExample | undefined,
): Promise<OperationExample> {
  const fresh = () => record(world!, operation, cases[operation.id]!);
  if (!known) return fresh();
  const outdated = Object.entries(known.responses).filter(
    ([status, body]) => body !== null && refusals(operation, status, body).length > 0,
  );
  if (outdated.length === 0) return known;
  const recorded = await fresh();
  const renewed = outdated.map(([status, body]) => [
    status,
    completeValue(body, recorded.responses[status], (value) => refusals(operation, status, value)),
  ]);
  return { ...known, responses: { ...known.responses, ...(Object.fromEntries(renewed) as object) } };
}

function remaining(operation: Operation, { responses }: OperationExample): string[] {
  return Object.entries(responses)
    .filter(([, body]) => body !== null)
    .flatMap(([status, body]) => refusals(operation, status, body))
    .filter(({ keyword }) => keyword === "required" || keyword === "additionalProperties")
    .map(({ instanceLocation, error }) => `${instanceLocation}: ${error}`);
}

function refusals({ document, schemas }: Operation, status: string, body: unknown) {
  const content = document.responses[status]?.content?.["application/json"] as { schema: Schema } | undefined;
  const components = Object.fromEntries(
    Object.entries(schemas).map(([reference, schema]) => [reference.split("/").at(-1)!, schema as Schema]),
  );
  return content ? refusalsOf(body, content.schema, components) : [];
}

async function record(opened: World, operation: Operation, shown: Case): Promise<OperationExample> {
  const call = await shown.success(opened);
  const token = shown.isPublic ? null : opened.owner.token;
  const success = await send(opened, operation.route, call, token);
  if (success.status >= 300) throw new Error(`status ${success.status}: ${success.text}`);
  const error = await cheapRefusal(opened, operation, shown, call);
  const raw = {
    ...parametersOf(operation, call),
    ...(call.body === undefined ? {} : { request: requestOf(operation, call.body) }),
    responses: {
      [success.status]: success.json,
      ...(error && error.status >= 400 ? { [error.status]: error.json } : {}),
    },
    ...(success.json === null && success.text !== "" ? { events: success.text.trimEnd().split("\n") } : {}),
  };
  return stable(raw, { operation, call, owner: opened.owner });
}

/** Returns a call with an error that needs no setup: a missing resource, or else a misspelled field. */
function cheapRefusal(
  opened: World,
  operation: Operation,
  shown: Case,
  call: Call,
): Promise<Reply> | undefined {
  const { token } = opened.owner;
  if (shown.unknown)
    return send(opened, operation.route, { ...call, params: { ...call.params, ...shown.unknown } }, token);
  if (!jsonBodyOf(operation) || shown.isFreeForm === true) return undefined;
  const [[name, value] = ["name", null], ...others] = Object.entries(call.body ?? {});
  const body = Object.fromEntries([[name.slice(0, -1), value], ...others]);
  return send(opened, operation.route, { ...call, body }, isPublic(operation) ? null : token);
}

function requestOf(operation: Operation, body: unknown): unknown {
  return jsonBodyOf(operation) ? body : JSON.stringify(body);
}

function parametersOf(
  { document }: Operation,
  { params, query }: Call,
): Pick<OperationExample, "parameters"> {
  const texts = { ...params, ...Object.fromEntries(new URLSearchParams(query)) };
  const values = Object.entries(texts).flatMap(([name, text]) => {
    const parameter = document.parameters?.find((one) => one.name === name);
    // A case may create more resources than the path names.
    if (parameter === undefined) return [];
    const { type = "string" } = parameter.schema;
    if (type === "array") return [[name, [text]]];
    return [[name, ["integer", "number", "boolean"].includes(type) ? (JSON.parse(text) as unknown) : text]];
  });
  return values.length === 0 ? {} : { parameters: Object.fromEntries(values) as Record<string, unknown> };
}
