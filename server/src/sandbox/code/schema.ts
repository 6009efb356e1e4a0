/** The wire of the code interpreter. */
import { z } from "zod";
import { EgressDenied } from "../exec/denied.ts";

const noNul = (text: string): boolean => !text.includes("\0");

export const languages = ["python", "javascript", "typescript"] as const;
const language = z.enum(languages);
export type Language = z.output<typeof language>;

export const ContextParams = z.strictObject({ id: z.string().max(64), ctx: z.string().max(64) });

export const Code = z
  .strictObject({
    code: z.string().max(1024 ** 2),
    language: language
      .optional()
      .describe("Default: that of the context, python where none is named. typescript is an extension."),
    context_id: z
      .string()
      .max(64)
      .nullish()
      .describe("Default: `default`, which each language has one of; it is made on first use."),
    timeout_seconds: z
      .int()
      .min(1)
      .max(3600)
      .default(60)
      .describe("The cell is interrupted then. Waiting for earlier cells does not count."),
    stream: z.boolean().default(false),
  })
  .meta({ id: "CodeRequest" });
export type Code = z.output<typeof Code>;

const value = z.union([z.string(), z.number(), z.boolean(), z.null()]);

const Series = z
  .object({
    label: z.string().nullable(),
    points: z
      .array(z.tuple([value, value]))
      .optional()
      .describe("[x, y]; of bars and pies [name, value], a pie's values being shares of the whole."),
    min: z.number().nullable().optional(),
    first_quartile: z.number().nullable().optional(),
    median: z.number().nullable().optional(),
    third_quartile: z.number().nullable().optional(),
    max: z.number().nullable().optional(),
    outliers: z.array(value).optional(),
  })
  .describe("A box plot has one of these for each box, with its numbers in place of points.");

const plainChart = {
  title: z.string().nullable(),
  x_label: z.string().nullable(),
  y_label: z.string().nullable(),
  series: z.array(Series),
};
const chartTypes = ["line", "scatter", "bar", "pie", "box"] as const;

export const Chart = z
  .object({
    type: z.enum([...chartTypes, "multiple"]),
    ...plainChart,
    subplots: z
      .array(z.object({ type: z.enum(chartTypes), ...plainChart }))
      .optional()
      .describe("Of a figure with several charts, whose type is `multiple`."),
  })
  .meta({ id: "Chart" });

export const resultTypes = ["text", "html", "image_png", "json", "chart"] as const;

export const CodeItem = z
  .object({
    type: z.enum(resultTypes).describe("The richest of the representations below."),
    text: z.string().nullable(),
    html: z.string().nullable(),
    png: z.string().nullable().describe("Base64."),
    json: z.unknown(),
    chart: Chart.nullable().describe("What a matplotlib figure shows, as data."),
  })
  .meta({ id: "CodeResultItem" });
export type CodeItem = z.output<typeof CodeItem>;

export const CodeError = z
  .object({ name: z.string(), value: z.string(), traceback: z.array(z.string()) })
  .meta({ id: "CodeError" });
export type CodeError = z.output<typeof CodeError>;

const summary = {
  execution_count: z.int().nullable(),
  context_id: z.string(),
  duration_ms: z.int(),
  interrupted: z.boolean().describe("It ran into its timeout. What it did until then stays."),
  restarted: z
    .boolean()
    .describe("The kernel was lost, in this cell or before it: variables from before are gone."),
  truncated: z
    .array(z.object({ field: z.string(), limit: z.int(), size: z.int() }))
    .describe("What was longer than it may be: stdout, stderr, results, or results[n].html and the like."),
  egress_denied: EgressDenied,
};

export const CodeSummary = z.object(summary);
export type CodeSummary = z.output<typeof CodeSummary>;

export const CodeResult = z
  .object({
    results: z.array(CodeItem),
    stdout: z.string(),
    stderr: z.string(),
    error: CodeError.nullable().describe("What the cell raised; that is still an answer of 200."),
    ...summary,
  })
  .meta({ id: "CodeResult" });
export type CodeResult = z.output<typeof CodeResult>;

/** The `data:` of each `event:`. */
export const CodeEvent = z
  .union([
    z.object({ stream: z.enum(["stdout", "stderr"]), text: z.string() }).describe("event: stream"),
    CodeItem.describe("event: result"),
    CodeError.describe("event: error"),
    CodeSummary.describe("event: done"),
  ])
  .meta({ id: "CodeEvent" });

export const ContextCreate = z
  .strictObject({
    language: language.default("python"),
    cwd: z
      .string()
      .max(4095)
      .startsWith("/", { error: "must be an absolute path" })
      .refine(noNul, { error: "must not contain NUL" })
      .default("/workspace"),
  })
  .meta({ id: "CodeContextCreate" });
export type ContextCreate = z.output<typeof ContextCreate>;

export const CodeContext = z
  .object({
    id: z.string(),
    language,
    cwd: z.string(),
    created_at: z.iso.datetime(),
    execution_count: z.int(),
    status: z.enum(["idle", "busy"]),
  })
  .meta({ id: "CodeContext" });
export type CodeContext = z.output<typeof CodeContext>;

export const CodeContextList = z.object({ items: z.array(CodeContext) }).meta({ id: "CodeContextList" });
