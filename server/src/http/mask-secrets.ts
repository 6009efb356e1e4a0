/**
 * Masks secrets in responses to a caller that may not read them. A schema marks a secret with
 * `.meta({ "x-kontor-secret": true })`; the mask replaces each marked text by a hint and leaves everything else.
 */
import { z } from "zod";
import { hintOf } from "#lib/secret-hint.ts";
import { definitionOf, isRecordOfValues, unwrap } from "./input/schema-walk.ts";

export type Mask = (value: unknown) => unknown;

/** Compiles the mask of a response schema. Undefined if the schema marks no secret. */
export function compileMask(schema: z.core.$ZodType): Mask | undefined {
  if (isMarked(schema)) return (value) => (typeof value === "string" ? hintOf(value) : value);
  const definition = definitionOf(unwrap(schema, "out"));
  switch (definition.type) {
    case "object":
      return maskFields(definition.shape);
    case "array": {
      const element = compileMask(definition.element);
      return element && ((value) => (Array.isArray(value) ? value.map(element) : value));
    }
    case "record": {
      const inner = compileMask(definition.valueType);
      return (
        inner &&
        ((value) =>
          isRecordOfValues(value)
            ? Object.fromEntries(Object.entries(value).map(([key, one]) => [key, inner(one)]))
            : value)
      );
    }
    case "union":
      return maskOptions(definition.options);
    default:
      return undefined;
  }
}

/** True if the schema is marked, or the schema inside its optional, nullable or similar wrapper. */
function isMarked(schema: z.core.$ZodType): boolean {
  if (z.globalRegistry.get(schema)?.["x-kontor-secret"] === true) return true;
  const definition = definitionOf(schema);
  return "innerType" in definition && isMarked(definition.innerType as z.core.$ZodType);
}

function maskFields(shape: Readonly<Record<string, z.core.$ZodType>>): Mask | undefined {
  const masks = Object.entries(shape).flatMap(([name, field]): [string, Mask][] => {
    const mask = compileMask(field);
    return mask ? [[name, mask]] : [];
  });
  if (masks.length === 0) return undefined;
  return (value) => {
    if (!isRecordOfValues(value)) return value;
    const out = { ...value };
    for (const [name, mask] of masks) if (out[name] !== undefined) out[name] = mask(out[name]);
    return out;
  };
}

/** Applies the mask of the first option that matches. */
function maskOptions(options: readonly z.core.$ZodType[]): Mask | undefined {
  const masks = options.map((option) => ({ option: option as z.ZodType, mask: compileMask(option) }));
  if (masks.every(({ mask }) => mask === undefined)) return undefined;
  return (value) => {
    const fit = masks.find(({ option }) => option.safeParse(value).success);
    return fit?.mask ? fit.mask(value) : value;
  };
}
