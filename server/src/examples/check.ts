/** Checks a value of an example against a schema of its API document. */
import { type OutputUnit, type Schema, Validator } from "@cfworker/json-schema";

/**
 * Copies the schema so that references lead to `$defs`, and objects allow no field beyond their `properties`. Outputs
 * are open in the document, so an example would keep a removed field unnoticed.
 */
function closeSchema(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(closeSchema);
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).filter(([key]) => key !== "example");
  const copy = Object.fromEntries(entries.map(([key, inner]) => [key, closeSchema(inner)]));
  if (typeof copy["$ref"] === "string")
    copy["$ref"] = copy["$ref"].replace("#/components/schemas/", "#/$defs/");
  if (copy["type"] === "object" && "properties" in copy) copy["additionalProperties"] ??= false;
  return copy;
}

/** Copies of the named schemas of each document. */
const named = new WeakMap<object, unknown>();

/** Returns all violations of the schema, by JSON pointer. */
export function refusalsOf(
  value: unknown,
  schema: Schema,
  components: Readonly<Record<string, Schema>>,
): OutputUnit[] {
  if (!named.has(components)) named.set(components, closeSchema(components));
  const whole = {
    ...(closeSchema(schema) as Schema),
    $defs: named.get(components) as Record<string, Schema>,
  };
  return new Validator(whole, "2020-12", false).validate(value).errors;
}
