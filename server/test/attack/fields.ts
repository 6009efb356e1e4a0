/** The fields of a body at any depth, according to its schema in the document. */
import type { Operation, Schema } from "../contract/operations.ts";

export interface Field {
  /** Path of the field: field names, and 0 for an element of a list. */
  path: readonly (string | number)[];
  /** Literal fields of each object on the path. They select the object's option in a union. */
  constants: readonly Readonly<Record<string, unknown>>[];
  kinds: ReadonlySet<"string" | "number" | "free">;
}

const maxDepth = 6;

export function fieldsOf(schema: Schema, schemas: Operation["schemas"]): Field[] {
  const fields = new Map<string, Field>();
  const visit = (part: Schema, path: Field["path"], constants: Field["constants"]): void => {
    if (path.length > maxDepth) return;
    const options = optionsOf(part, schemas);
    if (path.length > 0) {
      const key = JSON.stringify([path, constants]);
      const kinds = new Set([...(fields.get(key)?.kinds ?? []), ...options.flatMap(kindOf)]);
      fields.set(key, { path, constants, kinds });
    }
    for (const option of options) {
      const own = constantsOf(option);
      for (const [name, inner] of Object.entries(option.properties ?? {}))
        visit(inner, [...path, name], [...constants, own]);
      if (option.items) visit(option.items, [...path, 0], [...constants, {}]);
      if (option.properties && option.additionalProperties)
        visit({}, [...path, "other"], [...constants, own]);
    }
  };
  visit(schema, [], []);
  return [...fields.values()];
}

/** Returns the options of a schema, with references and unions resolved. */
function optionsOf(schema: Schema, schemas: Operation["schemas"], seen: readonly string[] = []): Schema[] {
  const { $ref } = schema;
  if ($ref !== undefined)
    return seen.includes($ref) ? [] : optionsOf(schemas[$ref] ?? {}, schemas, [...seen, $ref]);
  const unions = [schema.anyOf, schema.oneOf, schema.allOf].flatMap((union) => union ?? []);
  return unions.length > 0 ? unions.flatMap((option) => optionsOf(option, schemas, seen)) : [schema];
}

function constantsOf({ properties = {} }: Schema): Record<string, unknown> {
  const fixed = Object.entries(properties).filter(([, inner]) => inner.const !== undefined);
  return Object.fromEntries(fixed.map(([name, inner]) => [name, inner.const]));
}

function kindOf({ type, properties }: Schema): ("string" | "number" | "free")[] {
  if (type === "string") return ["string"];
  if (type === "number" || type === "integer") return ["number"];
  return type === undefined || (type === "object" && properties === undefined) ? ["free"] : [];
}

const placeholder = "placeholder-of-a-hostile-value";

/** Returns the body's JSON with `json` at the path. Missing objects on the path are created. */
export function withField(body: unknown, { path, constants }: Field, json: string): string {
  const replaced = replaceAt(body, path, constants);
  return JSON.stringify(replaced).replace(`"${placeholder}"`, () => json);
}

function replaceAt(
  value: unknown,
  [head, ...rest]: Field["path"],
  [fixed, ...constants]: Field["constants"],
): unknown {
  if (head === undefined) return placeholder;
  if (typeof head === "number")
    return [replaceAt(Array.isArray(value) ? value[0] : undefined, rest, constants)];
  const object = typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
  const inner = replaceAt((object as Record<string, unknown>)[head], rest, constants);
  return { ...object, ...fixed, [head]: inner };
}
