/** A person's answer to a question of a tool's server: fields that are left out get their defaults. */
import { invalidField } from "../errors.ts";
import { faultsOf } from "../json-schema.ts";
import { storableJson } from "../storable.ts";
import type { ElicitationQuestion } from "./tables.ts";

export type Content = Record<string, unknown>;

/** Throws if the answer does not fit the question's schema. `owner`: the workspace of the run. */
export async function answerTo(
  owner: string,
  { schema }: ElicitationQuestion,
  given: Content = {},
): Promise<Content> {
  const content = JSON.parse(storableJson({ ...defaultsOf(schema), ...given })) as Content;
  const faults = await faultsOf(owner, schema, content);
  if (faults.length > 0)
    throw invalidField(
      ["content"],
      `does not fit the question's schema: ${faults.join("; ")}. Correct it, or \`deny\` or \`cancel\` the question`,
    );
  return content;
}

function defaultsOf(schema: Record<string, unknown>): Content {
  const fields = Object.entries((schema["properties"] ?? {}) as Record<string, { default?: unknown }>);
  return Object.fromEntries(
    fields.flatMap(([name, field]) => (field.default === undefined ? [] : [[name, field.default]])),
  );
}
