/**
 * Compiles a copy function that keeps only the declared fields of a response. So a new column of a record never leaks.
 * The copy checks nothing: the contract tests parse every response against its schema. A full parse per request would
 * cost a fifth of the throughput.
 */
import type { z } from "zod";
import { definitionOf, isRecordOfValues, shapeOf, unwrap } from "./input/schema-walk.ts";

export type Pick = (value: unknown) => unknown;

const asIs: Pick = (value) => value;

export function compilePick(schema: z.core.$ZodType): Pick {
  const definition = definitionOf(unwrap(schema, "out"));
  switch (definition.type) {
    case "object":
      return pickObject(definition);
    case "array": {
      const element = compilePick(definition.element);
      if (element === asIs) return asIs;
      return (value) => (Array.isArray(value) ? value.map(element) : value);
    }
    case "record": {
      const inner = compilePick(definition.valueType);
      if (inner === asIs) return asIs;
      return (value) =>
        isRecordOfValues(value)
          ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, inner(one)]))
          : value;
    }
    case "union":
      return pickUnion(definition);
    default:
      return asIs;
  }
}

function pickObject(definition: z.core.$ZodObjectDef): Pick {
  if (definition.catchall !== undefined && definitionOf(definition.catchall).type !== "never") return asIs;
  // Getters in a shape may refer back to the schema itself. Compiling a field on first use ends the recursion.
  const fields = Object.keys(definition.shape).map((name): [string, Pick] => {
    let compiled: Pick | undefined;
    return [name, (value) => (compiled ??= compilePick(definition.shape[name]!))(value)];
  });
  return (value) => {
    if (!isRecordOfValues(value)) return value;
    const out: Record<string, unknown> = {};
    for (const [name, pick] of fields) {
      const field = value[name];
      if (field !== undefined) out[name] = field === null || typeof field !== "object" ? field : pick(field);
    }
    return out;
  };
}

/** A union keeps the fields of one option: the option that the discriminator names, or else the first that fits. */
function pickUnion({ options, discriminator }: z.core.$ZodUnionDef & { discriminator?: string }): Pick {
  const compiled = options.map((option) => ({ option: option as z.ZodType, pick: compilePick(option) }));
  if (compiled.every(({ pick }) => pick === asIs)) return asIs;
  return (value) => {
    if (typeof value !== "object" || value === null) return value;
    const match = compiled.find(({ option }) =>
      discriminator === undefined ? option.safeParse(value).success : isNamed(option, discriminator, value),
    );
    if (!match) throw new Error("a response matches no option of its declared union");
    return match.pick(value);
  };
}

function isNamed(option: z.ZodType, discriminator: string, value: object): boolean {
  const field = shapeOf(option)?.[discriminator];
  if (field === undefined) return false;
  const given = (value as Record<string, unknown>)[discriminator];
  return (field as z.ZodType).safeParse(given).success;
}
