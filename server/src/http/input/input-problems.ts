/**
 * Describes invalid input for each API: a pydantic type and message for the platform's 422, a plain sentence for the
 * sandbox and agent APIs. Both descriptions are from one table of Zod's issue codes, so that they always agree.
 */
import type { z } from "zod";
import { isInteger, maxMisfits, schemaAt, type Path } from "./schema-walk.ts";
import { nearest } from "#lib/nearest.ts";
import { synonymIn } from "./synonyms.ts";

export type Place = "path" | "query" | "body" | "header";

export interface Problem {
  place: Place;
  path: Path;
  /** Pydantic's error type: `missing`, `string_too_short`, … */
  type: string;
  /** Pydantic's message: "String should have at least 3 characters". */
  message: string;
  /** Our message, which follows the field's name: "must have at least 3 characters". */
  plain: string;
}

/** The search stops at this number, so that every response is bounded. */
export const maxProblems = maxMisfits;
/** Names from the caller's input are cut to this many characters. */
const maxNameLength = 64;

/**
 * Validation throws this error, and each API renders it in its own shape. Never holds the invalid value, because it may
 * be a secret.
 */
export class InvalidInput extends Error {
  readonly problems: readonly Problem[];

  constructor(problems: readonly Problem[]) {
    super("invalid input");
    this.name = "InvalidInput";
    this.problems = problems
      .slice(0, maxProblems)
      .map((problem) => ({ ...problem, path: problem.path.map(shorten) }));
  }
}

function shorten(part: PropertyKey): PropertyKey {
  return typeof part === "string" && part.length > maxNameLength
    ? `${part.slice(0, maxNameLength).toWellFormed()}…`
    : part;
}

type Wording = Pick<Problem, "type" | "message" | "plain">;

const plural = (count: number | bigint, noun: string): string =>
  `${count} ${noun}${Number(count) === 1 ? "" : "s"}`;
const quoteValues = (values: readonly unknown[]): string =>
  values.length < 2
    ? values.map((value) => `'${String(value)}'`).join("")
    : `${values
        .slice(0, -1)
        .map((value) => `'${String(value)}'`)
        .join(", ")} or '${String(values.at(-1))}'`;

/** Maps Zod's type names to pydantic's type, pydantic's noun and our noun. */
const types: Record<string, readonly [string, string, string]> = {
  string: ["string", "string", "a string"],
  boolean: ["bool", "boolean", "true or false"],
  array: ["list", "list", "a list"],
  object: ["model_attributes", "dictionary or object to extract fields from", "an object"],
  record: ["dict", "dictionary", "an object"],
  null: ["none_required", "None", "null"],
};

function wrongType(issue: z.core.$ZodIssueInvalidType, schema: z.core.$ZodType, place: Place): Wording {
  if (issue.input === undefined) return { type: "missing", message: "Field required", plain: "is required" };
  const expected: string = issue.expected;
  if (expected === "int" || expected === "number") {
    const field = schemaAt(schema, issue.path);
    if (field && !isInteger(field)) return numberWords("float", "number", "a number", issue.input, place);
    if (typeof issue.input === "number") {
      return {
        type: "int_from_float",
        message: "Input should be a valid integer, got a number with a fractional part",
        plain: "must be an integer",
      };
    }
    return numberWords("int", "integer", "an integer", issue.input, place);
  }
  if (expected === "boolean" && typeof issue.input === "string" && place !== "body") {
    return {
      type: "bool_parsing",
      message: "Input should be a valid boolean, unable to interpret input",
      plain: "must be true or false",
    };
  }
  const [word, noun, plain] = types[expected] ?? [expected, expected, `a ${expected}`];
  return { type: `${word}_type`, message: `Input should be a valid ${noun}`, plain: `must be ${plain}` };
}

function numberWords(word: string, noun: string, plain: string, input: unknown, place: Place): Wording {
  const unparsable = typeof input === "string" && place !== "body";
  return unparsable
    ? {
        type: `${word}_parsing`,
        message: `Input should be a valid ${noun}, unable to parse string as ${word === "int" ? "an integer" : "a number"}`,
        plain: `must be ${plain}`,
      }
    : { type: `${word}_type`, message: `Input should be a valid ${noun}`, plain: `must be ${plain}` };
}

function tooSmall({ origin, minimum, inclusive, exact }: z.core.$ZodIssueTooSmall): Wording {
  if (origin === "string") {
    const size = plural(minimum, "character");
    return {
      type: "string_too_short",
      message: `String should have at least ${size}`,
      plain: `must have ${exact ? "exactly" : "at least"} ${size}`,
    };
  }
  if (
    origin === "array" ||
    origin === "set" ||
    origin === "map" ||
    origin === "object" ||
    origin === "record"
  ) {
    const size = plural(minimum, "item");
    return {
      type: "too_short",
      message: `List should have at least ${size}`,
      plain: `must have at least ${size}`,
    };
  }
  return inclusive
    ? {
        type: "greater_than_equal",
        message: `Input should be greater than or equal to ${minimum}`,
        plain: `must be at least ${minimum}`,
      }
    : {
        type: "greater_than",
        message: `Input should be greater than ${minimum}`,
        plain: `must be greater than ${minimum}`,
      };
}

function tooBig({ origin, maximum, inclusive, exact }: z.core.$ZodIssueTooBig): Wording {
  if (origin === "string") {
    const size = plural(maximum, "character");
    return {
      type: "string_too_long",
      message: `String should have at most ${size}`,
      plain: `must have ${exact ? "exactly" : "at most"} ${size}`,
    };
  }
  if (
    origin === "array" ||
    origin === "set" ||
    origin === "map" ||
    origin === "object" ||
    origin === "record"
  ) {
    const size = plural(maximum, "item");
    return {
      type: "too_long",
      message: `List should have at most ${size}`,
      plain: `must have at most ${size}`,
    };
  }
  return inclusive
    ? {
        type: "less_than_equal",
        message: `Input should be less than or equal to ${maximum}`,
        plain: `must be at most ${maximum}`,
      }
    : {
        type: "less_than",
        message: `Input should be less than ${maximum}`,
        plain: `must be less than ${maximum}`,
      };
}

/** Maps a format to pydantic's type, pydantic's message and our message. */
const formats: Record<string, readonly [string, string, string]> = {
  uuid: ["uuid_parsing", "Input should be a valid UUID", "must be a UUID"],
  guid: ["uuid_parsing", "Input should be a valid UUID", "must be a UUID"],
  url: ["url_parsing", "Input should be a valid URL", "must be a URL"],
  email: ["value_error", "value is not a valid email address", "must be an e-mail address"],
  datetime: ["datetime_parsing", "Input should be a valid datetime", "must be an RFC 3339 time"],
  base64: ["value_error", "Value error, must be base64", "must be base64"],
};

/** Returns a message that a schema's author wrote. Undefined for Zod's own messages. */
function ownMessage(message: string): string | undefined {
  return /^(Invalid|Too (small|big)|Unrecognized|Expected)/.test(message) ? undefined : message;
}

function wrongFormat(issue: z.core.$ZodIssueInvalidStringFormat): Wording {
  const own = ownMessage(issue.message);
  const known = formats[issue.format];
  if (known) return { type: known[0], message: known[1], plain: own ?? known[2] };
  // A regular expression is not readable for people.
  if (own !== undefined) return { type: "value_error", message: `Value error, ${own}`, plain: own };
  const pattern = issue.pattern ?? issue.format;
  return {
    type: "string_pattern_mismatch",
    message: `String should match pattern '${pattern}'`,
    plain: "has a format that is not allowed; see the field in the API document",
  };
}

function notOneOf(values: readonly unknown[]): Wording {
  return {
    type: values.length > 1 ? "enum" : "literal_error",
    message: `Input should be ${quoteValues(values)}`,
    plain: `must be ${values.length > 1 ? "one of " : ""}${values.map(String).join(", ")}`,
  };
}

/** Converts a Zod issue to problems. A union's issue becomes the problems of its nearest option. */
export function problemsOf(issue: z.core.$ZodIssue, schema: z.core.$ZodType, place: Place): Problem[] {
  const at = (words: Wording): Problem[] => [{ place, path: issue.path, ...words }];
  switch (issue.code) {
    case "invalid_type":
      return at(wrongType(issue, schema, place));
    case "too_small":
      return at(tooSmall(issue));
    case "too_big":
      return at(tooBig(issue));
    case "invalid_format":
      return at(wrongFormat(issue));
    case "invalid_value":
      return at(issue.input === undefined ? missing : notOneOf(issue.values));
    case "not_multiple_of":
      return at({
        type: "multiple_of",
        message: `Input should be a multiple of ${issue.divisor}`,
        plain: `must be a multiple of ${issue.divisor}`,
      });
    case "invalid_union":
      return unionProblems(issue, schema, place);
    case "invalid_key":
      return issue.issues.flatMap((inner) =>
        problemsOf({ ...inner, path: issue.path } as z.core.$ZodIssue, schema, place),
      );
    case "invalid_element":
      return issue.issues.flatMap((inner) =>
        problemsOf({ ...inner, path: [...issue.path, ...inner.path] } as z.core.$ZodIssue, schema, place),
      );
    case "unrecognized_keys":
      // `misfits` finds unknown keys, with a suggestion, in loose and strict objects alike.
      return [];
    default:
      return at({
        type: "value_error",
        message: `Value error, ${issue.message}`,
        plain: ownMessage(issue.message) ?? "is not valid",
      });
  }
}

const missing: Wording = { type: "missing", message: "Field required", plain: "is required" };

function unionProblems(
  issue: z.core.$ZodIssueInvalidUnion,
  schema: z.core.$ZodType,
  place: Place,
): Problem[] {
  const at = (words: Wording): Problem[] => [{ place, path: issue.path, ...words }];
  if (issue.input === undefined && issue.errors.length > 0) return at(missing);
  // The option whose faults lie deepest is probably the intended option: a wrong field is nearer than a wrong type.
  const best = issue.errors
    .filter((issues) => issues.some((inner) => inner.path.length > 0 || inner.code !== "invalid_type"))
    .toSorted((a, b) => a.length - b.length)[0];
  if (best) {
    return best.flatMap((inner) =>
      problemsOf({ ...inner, path: [...issue.path, ...inner.path] } as z.core.$ZodIssue, schema, place),
    );
  }
  const accepted = issue.errors.flatMap((issues) =>
    issues.flatMap((inner) => (inner.code === "invalid_type" ? [inner.expected] : [])),
  );
  return at({
    type: "union_error",
    message: `Input should be a valid ${accepted.join(" or ") || "option"}`,
    plain:
      accepted.length > 0
        ? `must be of type ${accepted.join(" or ")}`
        : "has an unknown type; use a type that the API document lists",
  });
}

/** Returns the problem of a text or list that is far longer than its schema allows. */
export function tooLongProblem(
  place: Place,
  path: Path,
  origin: "string" | "array",
  maximum: number,
): Problem {
  return { place, path, ...tooBig({ origin, maximum, inclusive: true } as z.core.$ZodIssueTooBig) };
}

/** Returns the problem of an unknown field or query parameter. */
export function unknownFieldProblem(place: Place, path: Path, known: readonly string[]): Problem {
  const word = String(path.at(-1));
  const suggestion = synonymIn(word, known) ?? nearest(word, known);
  const hint = suggestion === undefined ? "" : `; did you mean '${suggestion}'?`;
  const noun = place === "query" ? "query parameter" : "field";
  return {
    place,
    path,
    type: "extra_forbidden",
    message: `Extra inputs are not permitted${hint}`,
    plain: `is not a known ${noun}${hint}`,
  };
}
