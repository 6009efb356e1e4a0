/** A person's response to a question of a tool's server. Missing fields get their defaults. */
import { createHmac } from "node:crypto";
import type { App } from "#app.ts";
import { invalidField } from "../errors.ts";
import { findFaults } from "../json-schema.ts";
import { storableJson } from "../storable.ts";
import type { ElicitationQuestion } from "./tables.ts";

export type Content = Record<string, unknown>;

/**
 * Returns the response with the defaults of missing fields. Throws if the response does not match the question's
 * schema. `owner`: the workspace of the run.
 */
export async function validateContent(
  owner: string,
  question: ElicitationQuestion,
  given: Content = {},
): Promise<Content> {
  const content = withDefaults(question, given);
  const faults = await findFaults(owner, question.schema, content);
  if (faults.length > 0)
    throw invalidField(
      ["content"],
      `does not fit the question's schema: ${faults.join("; ")}. Correct it, or \`deny\` or \`cancel\` the question`,
    );
  return content;
}

export function withDefaults({ schema }: ElicitationQuestion, given: Content = {}): Content {
  return JSON.parse(storableJson({ ...defaultsOf(schema), ...given })) as Content;
}

/**
 * Returns a keyed hash of an answer. The hash outlives the answer's content. The order of the fields makes no
 * difference.
 */
export function hashOfAnswer({ secrets }: Pick<App, "secrets">, id: string, content: Content): string {
  const fields = Object.entries(content).sort(([one], [other]) => (one < other ? -1 : 1));
  return createHmac("sha256", secrets.derive("answer"))
    .update(JSON.stringify([id, fields]))
    .digest("hex");
}

function defaultsOf(schema: Record<string, unknown>): Content {
  const fields = Object.entries((schema["properties"] ?? {}) as Record<string, { default?: unknown }>);
  return Object.fromEntries(
    fields.flatMap(([name, field]) => (field.default === undefined ? [] : [[name, field.default]])),
  );
}
