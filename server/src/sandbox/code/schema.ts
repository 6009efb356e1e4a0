/** The wire of the code interpreter. */
import { z } from "zod";
import { EgressDenied } from "../exec/denied.ts";
import { Env } from "../sandboxes/schema.ts";

const noNul = (text: string): boolean => !text.includes("\0");

export const languages = ["python", "javascript", "typescript", "bash"] as const;
const language = z.enum(languages);
export type Language = z.output<typeof language>;

export const ContextParams = z.strictObject({ id: z.string().max(64), ctx: z.string().max(64) });

export const Code = z
  .strictObject({
    code: z.string().max(1024 ** 2),
    language: language
      .optional()
      .describe(
        "Default: the language of the context, or python without a context. typescript and bash are extensions.",
      ),
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
    env: Env.optional().describe(
      'Extension. Environment variables of this cell alone; afterwards each has the value that it had. Example: {"MODE": "test"}.',
    ),
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
    total_points: z
      .int()
      .optional()
      .describe("Number of points that were drawn, if `points` holds only every n-th of them."),
    min: z.number().nullable().optional(),
    first_quartile: z.number().nullable().optional(),
    median: z.number().nullable().optional(),
    third_quartile: z.number().nullable().optional(),
    max: z.number().nullable().optional(),
    outliers: z.array(value).optional(),
  })
  .describe("A box plot has one of these for each box, with its numbers in place of points.");

/** Optional: machines of an older image do not send them. */
const axis = {
  scale: z
    .string()
    .nullable()
    .optional()
    .describe(
      "Scale of the axis: `linear`, `log`, `datetime`, `categorical` or another of matplotlib's. Null for a pie.",
    ),
  unit: z
    .string()
    .nullable()
    .optional()
    .describe('Unit at the end of the axis label, in parentheses or brackets: `km` of "Distance (km)".'),
  ticks: z.array(value).optional().describe("Values of the major ticks in view."),
  tickLabels: z.array(z.string()).optional().describe("Text beside each tick."),
};
const plainChart = {
  title: z.string().nullable(),
  x_label: z.string().nullable(),
  y_label: z.string().nullable(),
  x_scale: axis.scale,
  y_scale: axis.scale,
  x_unit: axis.unit,
  y_unit: axis.unit,
  x_ticks: axis.ticks,
  y_ticks: axis.ticks,
  x_tick_labels: axis.tickLabels,
  y_tick_labels: axis.tickLabels,
  series: z.array(Series),
};
const chartTypes = ["line", "scatter", "bar", "pie", "box", "unknown"] as const;

export const Chart = z
  .object({
    type: z
      .enum([...chartTypes, "multiple"])
      .describe("`unknown`: a figure of another kind, with its title and axes but without series."),
    ...plainChart,
    subplots: z
      .array(z.object({ type: z.enum(chartTypes), ...plainChart }))
      .optional()
      .describe("Of a figure with several charts, whose type is `multiple`."),
  })
  .meta({ id: "Chart" });

export const Table = z
  .object({
    columns: z.array(z.object({ name: z.string(), type: z.string().describe("Type in pandas: int64.") })),
    index: z.array(value).describe("Label of each row."),
    rows: z
      .array(z.array(value))
      .describe("The first rows: at most 1000 of at most 100 columns, and at most 1 MiB."),
    total_rows: z.int(),
    total_columns: z.int(),
  })
  .meta({ id: "CodeTable" });

export const resultTypes = ["text", "html", "image_png", "json", "chart"] as const;

export const CodeItem = z
  .object({
    type: z
      .enum(resultTypes)
      .describe("The richest of `chart`, `png`, `html`, `json` and `text`; an unknown chart does not count."),
    text: z.string().nullable(),
    html: z.string().nullable().describe("HTML of the object, or of an SVG or JPEG picture without PNG."),
    png: z.string().nullable().describe("Base64."),
    json: z.unknown(),
    chart: Chart.nullable().describe("Data of a matplotlib figure."),
    jpeg: z.string().nullable().describe("Extension. Base64."),
    svg: z.string().nullable().describe("Extension. SVG document."),
    pdf: z.string().nullable().describe("Extension. Base64."),
    markdown: z.string().nullable().describe("Extension. Markdown source."),
    latex: z.string().nullable().describe("Extension. LaTeX source."),
    table: Table.nullable().describe("Extension. Data of a pandas DataFrame or Series."),
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
    .describe(
      "Parts that were cut: stdout, stderr, results, results[n].html and the like in bytes, results[n].table.rows in rows. Limit 0: a form that no field holds.",
    ),
  egress_denied: EgressDenied,
};

export const CodeSummary = z.object(summary);
export type CodeSummary = z.output<typeof CodeSummary>;

export const CodeResult = z
  .object({
    results: z.array(CodeItem),
    stdout: z.string(),
    stderr: z.string(),
    error: CodeError.nullable().describe(
      "Exception of the cell; the status is still 200. A bash cell whose last command failed has `ExitStatus` with the number as its value.",
    ),
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
