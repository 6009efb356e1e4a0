/**
 * Looking into Zod schemas: what a wrapped schema really takes, which field a path leads to, and which keys of a
 * value no schema knows. Zod itself drops unknown keys in silence or names them without help; a caller's typing
 * mistake must never be swallowed, so `z.object` is strict at the door and `z.looseObject` is the way to be free.
 */
import type { z } from "zod";

export type Path = readonly PropertyKey[];

/** Which side of a transform is looked at: what goes in, or what comes out. */
export type Side = "in" | "out";

export function definitionOf(schema: z.core.$ZodType): z.core.$ZodTypes["_zod"]["def"] {
  return (schema as z.core.$ZodTypes)._zod.def;
}

/** Takes off optional, nullable, default, pipe and lazy until something with a shape of its own is left. */
export function unwrap(schema: z.core.$ZodType, side: Side = "in"): z.core.$ZodType {
  const definition = definitionOf(schema);
  switch (definition.type) {
    case "optional":
    case "nullable":
    case "default":
    case "prefault":
    case "nonoptional":
    case "readonly":
    case "catch":
      return unwrap(definition.innerType, side);
    case "pipe":
      return unwrap(side === "in" ? definition.in : definition.out, side);
    case "lazy":
      return unwrap(definition.getter(), side);
    default:
      return schema;
  }
}

export function isRecordOfValues(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The fields of an object schema, or undefined where it is none. */
export function shapeOf(schema: z.core.$ZodType): Readonly<Record<string, z.core.$ZodType>> | undefined {
  const definition = definitionOf(unwrap(schema));
  return definition.type === "object" ? definition.shape : undefined;
}

/** The schema a path leads to; undefined where the path leaves what the schema knows. */
export function schemaAt(schema: z.core.$ZodType, path: Path): z.core.$ZodType | undefined {
  const inner = unwrap(schema);
  const [head, ...rest] = path;
  if (head === undefined) return inner;
  const definition = definitionOf(inner);
  if (definition.type === "object") {
    const field = definition.shape[String(head)];
    return field && schemaAt(field, rest);
  }
  if (definition.type === "array") return schemaAt(definition.element, rest);
  if (definition.type === "record") return schemaAt(definition.valueType, rest);
  return undefined;
}

/** An integer and a number are one type in Zod; a caller is told which of them is wanted. */
export function isInteger(schema: z.core.$ZodType): boolean {
  const definition = definitionOf(schema) as {
    format?: string;
    checks?: readonly { _zod: { def: unknown } }[];
  };
  const formats = [definition, ...(definition.checks ?? []).map((check) => check._zod.def)] as {
    format?: string;
  }[];
  return formats.some(({ format }) => format !== undefined && /int/.test(format));
}

export interface UnknownKey {
  path: Path;
  known: readonly string[];
}

/** Every key of `value` that `schema` does not know, however deep. */
export function unknownKeys(schema: z.core.$ZodType, value: unknown, path: Path = []): UnknownKey[] {
  const definition = definitionOf(unwrap(schema));
  if (definition.type === "array" && Array.isArray(value)) {
    return value.flatMap((element, index) => unknownKeys(definition.element, element, [...path, index]));
  }
  if (!isRecordOfValues(value)) return [];
  if (definition.type === "object") {
    const { shape, catchall } = definition;
    const isFree = catchall !== undefined && definitionOf(catchall).type !== "never";
    const known = Object.keys(shape);
    return Object.entries(value).flatMap(([key, inner]) => {
      if (Object.hasOwn(shape, key)) return unknownKeys(shape[key]!, inner, [...path, key]);
      return isFree ? [] : [{ path: [...path, key], known }];
    });
  }
  if (definition.type === "record") {
    return Object.entries(value).flatMap(([key, inner]) =>
      unknownKeys(definition.valueType, inner, [...path, key]),
    );
  }
  if (definition.type === "union") {
    return (
      unionOption(definition.options, value)
        .map((option) => unknownKeys(option, value, path))
        .toSorted((a, b) => a.length - b.length)[0] ?? []
    );
  }
  return [];
}

/** The options of a union that an object may be meant for: those whose literal fields agree with it. */
function unionOption(options: readonly z.core.$ZodType[], value: Record<string, unknown>): z.core.$ZodType[] {
  const takesObjects = options.filter((option) =>
    ["object", "record"].includes(definitionOf(unwrap(option)).type),
  );
  const agreeing = takesObjects.filter((option) =>
    Object.entries(shapeOf(option) ?? {}).every(([key, field]) => {
      const definition = definitionOf(unwrap(field));
      return definition.type !== "literal" || (definition.values as unknown[]).includes(value[key]);
    }),
  );
  return agreeing.length > 0 ? agreeing : takesObjects;
}
