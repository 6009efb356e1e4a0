/**
 * Inspects Zod schemas: the type inside wrappers, the field at a path, and the keys of a value that no schema knows.
 * Zod drops unknown keys silently, or names them without a suggestion. A typing mistake of a caller must never be
 * ignored, so `z.object` rejects unknown keys and only `z.looseObject` accepts them.
 */
import type { z } from "zod";

export type Path = readonly PropertyKey[];

/** Side of a transform: its input or its output. */
export type Side = "in" | "out";

export function definitionOf(schema: z.core.$ZodType): z.core.$ZodTypes["_zod"]["def"] {
  return (schema as z.core.$ZodTypes)._zod.def;
}

/** Unwraps optional, nullable, default, pipe and lazy schemas, down to the first other schema. */
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

/** Returns the fields of an object schema. Undefined for other schemas. */
export function shapeOf(schema: z.core.$ZodType): Readonly<Record<string, z.core.$ZodType>> | undefined {
  const definition = definitionOf(unwrap(schema));
  return definition.type === "object" ? definition.shape : undefined;
}

/** Returns the schema at a path. Undefined if the path leaves the schema. */
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

/** Zod has one type for integers and numbers, but error messages distinguish them. */
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

/** A key that the schema lacks, or a text or list far too long to be parsed. */
export type Misfit =
  | { kind: "unknown"; path: Path; known: readonly string[] }
  | { kind: "oversized"; path: Path; origin: "string" | "array"; maximum: number };

/** Maximum of misfits that are reported for a value. */
export const maxMisfits = 20;
/**
 * Length above which a value is measured before Zod parses it, because Zod parses each element and runs each pattern.
 */
const measuredAbove = 1_000;

/**
 * Yields every misfit in `value`, at any depth. The function is a generator, so that a caller can stop the walk. The
 * depth of a body is limited before it is parsed.
 */
export function* misfits(schema: z.core.$ZodType, value: unknown, path: Path = []): Generator<Misfit> {
  const inner = unwrap(schema);
  const definition = definitionOf(inner);
  if (typeof value === "string" || Array.isArray(value)) {
    const maximum = maximumOf(inner);
    if (value.length > Math.max(maximum, measuredAbove)) {
      const origin = typeof value === "string" ? "string" : "array";
      yield { kind: "oversized", path, origin, maximum };
      return;
    }
  }
  if (definition.type === "union") yield* misfitsOfUnion(definition.options, value, path);
  else if (definition.type === "array" && Array.isArray(value)) {
    for (const [index, element] of value.entries())
      yield* misfits(definition.element, element, [...path, index]);
  } else if (definition.type === "record" && isRecordOfValues(value)) {
    for (const [key, element] of Object.entries(value))
      yield* misfits(definition.valueType, element, [...path, key]);
  } else if (definition.type === "object" && isRecordOfValues(value)) {
    const { shape, catchall } = definition;
    const isFree = catchall !== undefined && definitionOf(catchall).type !== "never";
    const known = Object.keys(shape);
    for (const [key, element] of Object.entries(value)) {
      if (Object.hasOwn(shape, key)) yield* misfits(shape[key]!, element, [...path, key]);
      else if (!isFree) yield { kind: "unknown", path: [...path, key], known };
    }
  }
}

/** Returns the maximum of characters or elements that a schema allows. */
function maximumOf(schema: z.core.$ZodType): number {
  const { checks = [] } = definitionOf(schema) as { checks?: readonly { _zod: { def: unknown } }[] };
  const maxima = checks.map(({ _zod }) => {
    const { check, maximum, length } = _zod.def as { check: string; maximum?: number; length?: number };
    return (check === "max_length" ? maximum : check === "length_equals" ? length : undefined) ?? Infinity;
  });
  return Math.min(...maxima);
}

/** Yields the misfits of the option with the fewest misfits. */
function* misfitsOfUnion(options: readonly z.core.$ZodType[], value: unknown, path: Path): Generator<Misfit> {
  const meant = isRecordOfValues(value)
    ? unionOption(options, value)
    : options.filter((option) => takesKind(option, value));
  let fewest: Misfit[] | undefined;
  for (const option of meant) {
    const found = firstOf(misfits(option, value, path), fewest?.length ?? maxMisfits);
    if (fewest === undefined || found.length < fewest.length) fewest = found;
  }
  yield* fewest ?? [];
}

function firstOf<T>(items: Iterable<T>, count: number): T[] {
  const first: T[] = [];
  for (const item of items) {
    if (first.length >= count) break;
    first.push(item);
  }
  return first;
}

function takesKind(option: z.core.$ZodType, value: unknown): boolean {
  const { type } = definitionOf(unwrap(option));
  return type === "union" || (Array.isArray(value) ? type === "array" : type === typeof value);
}

/** Returns the union options whose literal fields match the object. */
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
