/**
 * Validates path, query and body against a route's schemas, and reports all faults at once. Handlers can trust the
 * types of their input. Query strings are converted to the schema's numbers, booleans, lists and `name[key]=value`
 * objects. A body is not converted.
 */
import { z } from "zod";
import type { Route } from "../define-route.ts";
import {
  InvalidInput,
  maxProblems,
  tooLongProblem,
  problemsOf,
  unknownFieldProblem,
  type Place,
  type Problem,
} from "./input-problems.ts";
import { definitionOf, isInteger, isRecordOfValues, misfits, shapeOf, unwrap } from "./schema-walk.ts";

export interface RawInput {
  params: unknown;
  query: unknown;
  /** Undefined if no body was sent. */
  body: unknown;
}

export interface ParsedInput {
  params: unknown;
  query: unknown;
  body: unknown;
}

const noFields = z.object({});
const noBody = z.object({}).optional();

/** Compiles a route's validation once. The returned function throws `InvalidInput`. */
export function compileValidation(route: Route): (raw: RawInput) => ParsedInput {
  const names = [...route.path.matchAll(/\{(\w+)\}/g)].map((match) => match[1]!);
  const params = route.params ?? z.object(Object.fromEntries(names.map((name) => [name, z.string()])));
  const query = route.query ?? noFields;
  const body = route.body ?? noBody;
  const takesBody = route.bodyType !== "stream" && ["POST", "PUT", "PATCH"].includes(route.method);
  const ignored = new Set(route.readOnlyFields);
  return (raw) => {
    const problems: Problem[] = [];
    const coerced = coerceQuery(query, raw.query as Record<string, string | string[]>, problems);
    const parsed = {
      params: check("path", params, raw.params, problems),
      query: check("query", query, coerced, problems),
      body: takesBody ? check("body", body, without(raw.body, ignored), problems) : undefined,
    };
    if (problems.length > 0) throw new InvalidInput(problems);
    return parsed;
  };
}

function without(body: unknown, names: ReadonlySet<string>): unknown {
  if (names.size === 0 || !isRecordOfValues(body)) return body;
  return Object.fromEntries(Object.entries(body).filter(([name]) => !names.has(name)));
}

function check(place: Place, schema: z.ZodType, value: unknown, problems: Problem[]): unknown {
  // A query value that could not be converted has its own problem already, so Zod's issue at the same path is skipped.
  const told = new Set(
    problems.filter((problem) => problem.place === place).map((problem) => problem.path.join(".")),
  );
  for (const text of unusableStrings(place, value)) problems.push(text);
  // Zod parses a value of any size, and does not limit the number of issues. So a value with too many or too large
  // misfits is not parsed.
  let isHopeless = false;
  for (const misfit of misfits(schema, value)) {
    problems.push(
      misfit.kind === "unknown"
        ? unknownFieldProblem(place, misfit.path, misfit.known)
        : tooLongProblem(place, misfit.path, misfit.origin, misfit.maximum),
    );
    isHopeless ||= misfit.kind === "oversized" || problems.length >= maxProblems;
    if (problems.length >= maxProblems) break;
  }
  if (isHopeless) return undefined;
  const result = schema.safeParse(value, { reportInput: true });
  if (result.success) return result.data;
  for (const issue of result.error.issues) {
    if (problems.length >= maxProblems) break;
    if (!told.has(issue.path.join("."))) problems.push(...problemsOf(issue, schema, place));
  }
  return undefined;
}

/** Returns a problem for each string with NUL in a path or query. Neither PostgreSQL nor a file system accepts NUL. */
function unusableStrings(place: Place, value: unknown): Problem[] {
  if (place === "body" || !isRecordOfValues(value)) return [];
  return Object.entries(value)
    .filter(([, text]) => typeof text === "string" && text.includes("\0"))
    .map(([name]) => ({
      place,
      path: [name],
      type: "value_error",
      message: "Value error, must not contain NUL",
      plain: "must not contain NUL",
    }));
}

/** Query values that FastAPI accepts as booleans. */
const booleans: Record<string, boolean> = {
  true: true,
  "1": true,
  yes: true,
  on: true,
  false: false,
  "0": false,
  no: false,
  off: false,
};

/**
 * Converts query strings to the types of the schema's fields. A value that cannot be converted stays a string, and Zod
 * reports it.
 */
function coerceQuery(
  schema: z.ZodType,
  raw: Readonly<Record<string, string | string[]>>,
  problems: Problem[],
): Record<string, unknown> {
  const shape = shapeOf(schema) ?? {};
  const out: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(raw)) {
    // The key is everything between the first and the last bracket, because a key may contain brackets.
    const deep = /^(\w+)\[(.*)\]$/s.exec(name);
    const key = deep ? deep[1]! : name;
    const field = Object.hasOwn(shape, key) ? shape[key] : undefined;
    if (field === undefined) {
      out[name] = value;
      continue;
    }
    const kind = definitionOf(unwrap(field)).type;
    if (deep && (kind === "record" || kind === "object")) {
      // `defineProperty` creates an own property even for `__proto__`, and never walks into a prototype.
      const group = (out[key] ??= {});
      // For `metadata=x&metadata[k]=v` the text stays, and the schema refuses it.
      if (isRecordOfValues(group))
        Object.defineProperty(group, deep[2]!, {
          value,
          enumerable: true,
          configurable: true,
          writable: true,
        });
    } else if (deep) {
      out[name] = value;
    } else if (kind === "array") {
      const element = (definitionOf(unwrap(field)) as z.core.$ZodArrayDef).element;
      out[name] = [value].flat().map((one) => coerceOne(element, one));
    } else if (Array.isArray(value)) {
      problems.push({
        place: "query",
        path: [name],
        type: "value_error",
        message: "Value error, was given more than once",
        plain: "was given more than once; give it once",
      });
      out[name] = coerceOne(field, value[0] ?? "");
    } else {
      out[name] = coerceOne(field, value);
    }
  }
  return out;
}

function coerceOne(field: z.core.$ZodType, text: string): unknown {
  const inner = unwrap(field);
  const kind = definitionOf(inner).type;
  if (kind === "boolean") return booleans[text.toLowerCase()] ?? text;
  if (kind !== "number") return text;
  const looksRight = isInteger(inner) ? /^[+-]?\d{1,15}$/.test(text) : /^[+-]?\d+(\.\d+)?$/.test(text);
  return looksRight ? Number(text) : text;
}
