/** Rules that hold for every response. */
import { z } from "zod";
import type { Operation } from "../contract/operations.ts";
import type { Reply } from "../contract/world.ts";

const maxRefusalBytes = 32 * 1024;
const maxProblems = 20;

/** Error codes of HTTP itself, which are sent before an operation is found, and of an unavailable database. */
const common: Readonly<Record<number, readonly string[]>> = {
  400: ["invalid_request"],
  404: ["not_found"],
  405: ["method_not_allowed"],
  411: ["length_required"],
  413: ["payload_too_large"],
  415: ["unsupported_media_type"],
  431: ["headers_too_large"],
  503: ["unavailable"],
};

/** Matches traces of code, SQL and this host. No hostile value contains such a trace. */
const leak = /\n {4}at |node_modules|node:internal|\bselect "|\binsert into "|\.ts:\d+/;

/** Returns the violated rule, or undefined. With `isStrict`, the document must list the code of an error. */
export function faultOf(
  operation: Operation,
  { status, json, text }: Reply,
  isStrict: boolean,
): string | undefined {
  if (leak.test(text)) return "leaks what is none of a caller's business";
  if (status < 400) return mismatchOf(operation, status, json);
  const { code, detail, errors } = (json ?? {}) as Record<string, unknown>;
  if (status >= 500 && !common[status]?.includes(String(code))) return "is the server's fault";
  if (typeof code !== "string" || detail === undefined) return "is no error of ours";
  const declared = operation.document.responses[status]?.["x-kontor-codes"] ?? [];
  if (isStrict && ![...declared, ...(common[status] ?? [])].includes(code))
    return `has the undeclared code ${code}`;
  if (text.length > maxRefusalBytes) return `has ${text.length} bytes`;
  const problems = [detail, errors].find(Array.isArray);
  if (problems && problems.length > maxProblems) return `names ${problems.length} problems`;
  return undefined;
}

function mismatchOf({ route }: Operation, status: number, json: unknown): string | undefined {
  const response = route.responses[status];
  if (response === undefined) return "has an undeclared status";
  if (!(response instanceof z.ZodType) || json === null) return undefined;
  const { error } = response.safeParse(json);
  return error && `does not fit its schema: ${error.issues[0]!.path.join(".")} ${error.issues[0]!.message}`;
}
