/**
 * The thread that checks values against JSON Schemas: whatever runs away here can be ended, and stops nothing else.
 * Answers each question with one message, after a first one that says it is ready.
 */
import { parentPort } from "node:worker_threads";
import { dereference, type OutputUnit, Validator } from "@cfworker/json-schema";

/** Without a `value`: whether the schema can be used at all. */
export interface Question {
  schema: Record<string, unknown>;
  value?: { is: unknown };
}

/** A line for each fault, at most ten. */
export type Answer = { faults: string[] } | { error: string };

function answer({ schema, value }: Question): Answer {
  try {
    if (value) {
      const { valid, errors } = new Validator(schema, "2020-12", false).validate(value.is);
      return { faults: valid ? [] : linesOf(errors) };
    }
    dereference(schema);
    for (const one of [null, "", 0, [], {}]) new Validator(schema, "2020-12").validate(one);
    return { faults: [] };
  } catch (error) {
    return { error: String((error as Error).message).slice(0, 200) };
  }
}

function linesOf(errors: readonly OutputUnit[]): string[] {
  // The first ones only say that something below them does not fit.
  const own = errors.filter(({ keyword }) => !["properties", "items", "$ref", "allOf"].includes(keyword));
  return (own.length > 0 ? own : errors)
    .slice(0, 10)
    .map(({ instanceLocation, error }) => `${instanceLocation.replace(/^#/, "") || "/"}: ${error}`);
}

parentPort?.on("message", (question: Question) => parentPort?.postMessage(answer(question)));
parentPort?.postMessage("ready");
