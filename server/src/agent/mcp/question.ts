/**
 * Checks a question of an MCP server for a person. The server is hostile: the text and the schema are bounded, and the
 * schema is rebuilt from the flat fields that the protocol allows. Any other question is refused.
 */
import { z } from "zod";

const messageMaxBytes = 4 * 1024;
const schemaMaxBytes = 16 * 1024;
const fieldsMax = 50;
const choicesMax = 200;

const short = z.string().max(500);
const names = { title: short.optional(), description: z.string().max(2_000).optional() };
const choices = z.array(short).min(1).max(choicesMax);
const titled = z
  .array(z.object({ const: short, title: short }))
  .min(1)
  .max(choicesMax);
const count = z.int().min(0).optional();

const Field = z.union([
  z.object({
    type: z.literal("string"),
    ...names,
    enum: choices,
    enumNames: z.array(short).max(choicesMax).optional(),
    default: short.optional(),
  }),
  z.object({ type: z.literal("string"), ...names, oneOf: titled, default: short.optional() }),
  z.object({
    type: z.literal("string"),
    ...names,
    minLength: count,
    maxLength: count,
    format: z.enum(["email", "uri", "date", "date-time"]).optional(),
    default: z.string().max(2_000).optional(),
  }),
  z.object({
    type: z.enum(["number", "integer"]),
    ...names,
    minimum: z.number().optional(),
    maximum: z.number().optional(),
    default: z.number().optional(),
  }),
  z.object({ type: z.literal("boolean"), ...names, default: z.boolean().optional() }),
  z.object({
    type: z.literal("array"),
    ...names,
    minItems: count,
    maxItems: count,
    items: z.union([z.object({ type: z.literal("string"), enum: choices }), z.object({ anyOf: titled })]),
    default: choices.min(0).optional(),
  }),
]);

const Question = z.object({
  message: z.string(),
  requestedSchema: z.object({
    type: z.literal("object"),
    properties: z.record(z.string().min(1).max(200), Field),
    required: z.array(z.string()).max(fieldsMax).optional(),
  }),
});

/**
 * Returns the question for a person. Returns undefined if the question is malformed, too large, or shows the secret in
 * a field. `hide` blanks the toolset's secret.
 */
export function questionOf(
  params: unknown,
  hide: (text: string) => string,
): { message: string; schema: Record<string, unknown> } | undefined {
  // The size is checked before the question is parsed, because the parser compares each field with all forms of fields.
  const { message, requestedSchema } = (params ?? {}) as Record<string, unknown>;
  if (typeof message !== "string" || Buffer.byteLength(message) > messageMaxBytes) return undefined;
  const given = JSON.stringify(requestedSchema) ?? "";
  if (Buffer.byteLength(given) > schemaMaxBytes || hasHidden(requestedSchema, hide)) return undefined;
  const parsed = Question.safeParse({ message, requestedSchema });
  if (!parsed.success) return undefined;
  const { properties, required = [] } = parsed.data.requestedSchema;
  const fields = Object.keys(properties);
  if (fields.length > fieldsMax || !required.every((name) => fields.includes(name))) return undefined;
  return {
    message: hide(message),
    schema: { type: "object", properties, required: [...new Set(required)], additionalProperties: false },
  };
}

/**
 * Returns true if a text in the value contains the secret. Compares each text by itself, because JSON text escapes
 * quotation marks in a secret.
 */
function hasHidden(value: unknown, hide: (text: string) => string): boolean {
  if (typeof value === "string") return hide(value) !== value;
  if (typeof value === "number") return hasHidden(String(value), hide);
  if (typeof value !== "object" || value === null) return false;
  return Object.entries(value).some(([name, inner]) => hide(name) !== name || hasHidden(inner, hide));
}
