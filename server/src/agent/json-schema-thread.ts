/**
 * Thread that checks values against JSON Schemas, so that a check without end can be terminated alone. The thread sends
 * one message when it is ready, and then one response per question.
 */
import { parentPort } from "node:worker_threads";
import { dereference, type OutputUnit, Validator } from "@cfworker/json-schema";

/** A value and its schema. Without a `value`, the thread checks the schema itself. */
export interface Question {
  schema: Record<string, unknown>;
  value?: { is: unknown };
}

/** Result of a check: at most ten faults, each as one line of text. */
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
  // Errors of these keywords only repeat that a part of the value does not fit.
  const own = errors.filter(({ keyword }) => !["properties", "items", "$ref", "allOf"].includes(keyword));
  return (own.length > 0 ? own : errors)
    .slice(0, 10)
    .map(({ instanceLocation, error }) => `${instanceLocation.replace(/^#/, "") || "/"}: ${error}`);
}

parentPort?.on("message", (question: Question) => parentPort?.postMessage(answer(question)));
parentPort?.postMessage("ready");
