/**
 * JSON Schemas that callers write: whether one can be used, and whether a value fits it. The checker reads a schema
 * as data, no code is made of it; and since a pattern in it may take for ever on the right text, each question has a
 * bounded time, after which the answer is no.
 */
import { createContext, runInContext } from "node:vm";
import { dereference, Validator } from "@cfworker/json-schema";

/** Of JSON text. */
const schemaMaxBytes = 64 * 1024;
const depthMax = 50;
/** A schema of 64 KiB is walked over a text of a megabyte in a tenth of it. */
const withinMs = 500;

/** To stand after the field's name. */
export function whyNotSchema(schema: Record<string, unknown>): string | undefined {
  if (JSON.stringify(schema).length > schemaMaxBytes) return `must be at most ${schemaMaxBytes} bytes`;
  if (depthOf(schema) > depthMax) return `must be at most ${depthMax} levels deep`;
  const outcome = bounded(() => {
    dereference(schema);
    for (const value of [null, "", 0, [], {}]) new Validator(schema, "2020-12").validate(value);
    return undefined;
  });
  return "error" in outcome ? `is no JSON Schema that can be used: ${outcome.error}` : undefined;
}

/** What does not fit, one line for each fault, at most ten; empty where it fits. */
export function faultsOf(schema: Record<string, unknown>, value: unknown): string[] {
  const outcome = bounded(() => new Validator(schema, "2020-12", false).validate(value));
  if ("error" in outcome) return [outcome.error];
  const { valid, errors } = outcome.result;
  if (valid) return [];
  // The first ones only say that something below them does not fit.
  const own = errors.filter(({ keyword }) => !["properties", "items", "$ref", "allOf"].includes(keyword));
  return (own.length > 0 ? own : errors)
    .slice(0, 10)
    .map(({ instanceLocation, error }) => `${instanceLocation.replace(/^#/, "") || "/"}: ${error}`);
}

const context = createContext({ work: undefined });

/** Also ends a regular expression that runs away: the engine is interrupted, whatever it does. */
function bounded<T>(work: () => T): { result: T } | { error: string } {
  context["work"] = work;
  try {
    return { result: runInContext("work()", context, { timeout: withinMs }) as T };
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    return {
      error: code === "ERR_SCRIPT_EXECUTION_TIMEOUT" ? "it takes too long to check" : message.slice(0, 200),
    };
  } finally {
    context["work"] = undefined;
  }
}

function depthOf(value: unknown): number {
  let depth = 0;
  let level: unknown[] = [value];
  while (level.length > 0 && depth <= depthMax) {
    depth += 1;
    level = level.flatMap((one) => (typeof one === "object" && one !== null ? Object.values(one) : []));
  }
  return depth;
}
