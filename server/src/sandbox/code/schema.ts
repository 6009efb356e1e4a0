/** Request and response schemas of the code interpreter. */
import { z } from "zod";
import { EgressDenied } from "../exec/egress-denials.ts";
import { outputStream, sandboxIdParameter } from "../fields.ts";
import { Env } from "../sandboxes/schema.ts";

const noNul = (text: string): boolean => !text.includes("\0");

const languages = ["python", "javascript", "typescript", "bash"] as const;
const language = z.enum(languages);
export type Language = z.output<typeof language>;

export const ContextParams = z.strictObject({
  id: sandboxIdParameter,
  ctx: z
    .string()
    .max(64)
    .describe(
      "Id of the context: `ctx_` and 20 letters and digits, or a default one such as `default-bash`.",
    ),
});

export const Code = z
  .strictObject({
    code: z
      .string()
      .max(1024 ** 2)
      .describe("Source code of the cell, at most 1,048,576 characters. Example: `print(1 + 1)`."),
    language: language
      .optional()
      .describe(
        "Language of the cell. Default: the context's language, or python without a context. Extensions: typescript and bash.",
      ),
    context_id: z
      .string()
      .max(64)
      .nullish()
      .describe("Id of the context. Default: the default context of the language, created on first use."),
    timeout_seconds: z
      .int()
      .min(1)
      .max(3600)
      .default(60)
      .describe(
        "Seconds until the cell is interrupted, 1 to 3600, without the wait for earlier cells. Default: 60.",
      ),
    stream: z
      .boolean()
      .default(false)
      .describe(
        "Respond with server-sent events while the cell runs. Default: false, one JSON object at its end.",
      ),
    env: Env.optional().describe(
      'Environment variables of this cell alone; afterwards each has its earlier value. Example: {"MODE": "test"}. Extension.',
    ),
  })
  .meta({ id: "CodeRequest" });
export type Code = z.output<typeof Code>;

const value = z.union([z.string(), z.number(), z.boolean(), z.null()]);

const Series = z
  .object({
    label: z.string().nullable().describe("Label of the line, bars or box. Null without one, and for a pie."),
    points: z
      .array(z.tuple([value, value]))
      .optional()
      .describe(
        "Points as [x, y]; for bars and pies as [name, value]. The values of a pie are shares of the whole.",
      ),
    total_points: z
      .int()
      .optional()
      .describe("Number of points that were drawn, if `points` holds only every n-th of them."),
    min: z.number().nullable().optional().describe("Lower whisker of the box. Absent for other charts."),
    first_quartile: z
      .number()
      .nullable()
      .optional()
      .describe("First quartile, the lower edge of the box. Absent for other charts."),
    median: z.number().nullable().optional().describe("Median of the box. Absent for other charts."),
    third_quartile: z
      .number()
      .nullable()
      .optional()
      .describe("Third quartile, the upper edge of the box. Absent for other charts."),
    max: z.number().nullable().optional().describe("Upper whisker of the box. Absent for other charts."),
    outliers: z
      .array(value)
      .optional()
      .describe("Values beyond the whiskers of the box, at most 20,000. Absent for other charts."),
  })
  .describe(
    "Data of a line, a group of points or bars, a pie, or one box. A box has statistics instead of points.",
  );

/** Fields of an axis that are optional, because machines of an older image do not send them. */
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
  title: z.string().nullable().describe("Title of the chart. Null without one."),
  x_label: z.string().nullable().describe("Label of the x axis. Null without one, and for a pie."),
  y_label: z.string().nullable().describe("Label of the y axis. Null without one, and for a pie."),
  x_scale: axis.scale,
  y_scale: axis.scale,
  x_unit: axis.unit,
  y_unit: axis.unit,
  x_ticks: axis.ticks,
  y_ticks: axis.ticks,
  x_tick_labels: axis.tickLabels,
  y_tick_labels: axis.tickLabels,
  series: z
    .array(Series)
    .describe(
      "Lines, groups of points or bars, the pie, or the boxes. Empty if the type is `unknown` or `multiple`.",
    ),
};
const chartTypes = ["line", "scatter", "bar", "pie", "box", "unknown"] as const;

export const Chart = z
  .object({
    type: z
      .enum([...chartTypes, "multiple"])
      .describe("`unknown`: a figure of another kind, with its title and axes but without series."),
    ...plainChart,
    subplots: z
      .array(
        z.object({
          type: z
            .enum(chartTypes)
            .describe("Type of this chart. `unknown`: a chart of another kind, without series."),
          ...plainChart,
        }),
      )
      .optional()
      .describe("Charts of a figure with the type `multiple`."),
  })
  .meta({ id: "Chart" });

export const Table = z
  .object({
    columns: z
      .array(
        z.object({
          name: z.string().describe("Label of the column as text. Two columns may have the same."),
          type: z.string().describe("Type of the column in pandas, such as `int64`."),
        }),
      )
      .describe("First columns of the table, at most 100."),
    index: z.array(value).describe("Label of each row."),
    rows: z
      .array(z.array(value))
      .describe("First rows of the table: at most 1000 rows of 100 columns, and at most 1 MiB."),
    total_rows: z.int().describe("Number of rows of the whole table, including those left out of `rows`."),
    total_columns: z
      .int()
      .describe("Number of columns of the whole table, including those left out of `columns`."),
  })
  .meta({ id: "CodeTable" });

const resultTypes = ["text", "html", "image_png", "json", "chart"] as const;

export const CodeItem = z
  .object({
    type: z
      .enum(resultTypes)
      .describe(
        "Richest form of the result, in the order chart, PNG, HTML, JSON, text. An `unknown` chart does not count.",
      ),
    text: z
      .string()
      .nullable()
      .describe("Plain text of the result, such as Python's `repr`. Null if the result has none."),
    html: z
      .string()
      .nullable()
      .describe(
        "HTML of the result, or of its SVG or JPEG picture without PNG. Null if the result has none.",
      ),
    png: z.string().nullable().describe("PNG picture as base64. Null if the result has none."),
    json: z.unknown().describe("JSON value of the result (`application/json`). Null if the result has none."),
    chart: Chart.nullable().describe("Data of a matplotlib figure. Null for other results."),
    jpeg: z.string().nullable().describe("JPEG picture as base64. Null if the result has none. Extension."),
    svg: z.string().nullable().describe("SVG document. Null if the result has none. Extension."),
    pdf: z.string().nullable().describe("PDF document as base64. Null if the result has none. Extension."),
    markdown: z.string().nullable().describe("Markdown source. Null if the result has none. Extension."),
    latex: z.string().nullable().describe("LaTeX source. Null if the result has none. Extension."),
    table: Table.nullable().describe(
      "Data of a pandas DataFrame or Series. Null for other results. Extension.",
    ),
  })
  .meta({ id: "CodeResultItem" });
export type CodeItem = z.output<typeof CodeItem>;

export const CodeError = z
  .object({
    name: z
      .string()
      .describe("Class of the exception, such as `ZeroDivisionError`, or `KernelDied` if the kernel ended."),
    value: z
      .string()
      .describe("Message of the exception, such as `division by zero`; at most 16,384 characters."),
    traceback: z
      .array(z.string())
      .describe("Last parts of the traceback without colors, at most 50. Empty if there is none."),
  })
  .meta({ id: "CodeError" });
export type CodeError = z.output<typeof CodeError>;

const summary = {
  execution_count: z
    .int()
    .nullable()
    .describe(
      "Number of the cell in its kernel, from 1. Null if the interpreter ended before it reported one.",
    ),
  context_id: z
    .string()
    .describe("Id of the context that ran the cell, such as `default` or `default-bash`."),
  duration_ms: z.int().describe("Run time of the cell in milliseconds, without the wait for earlier cells."),
  interrupted: z
    .boolean()
    .describe("True if the cell was interrupted at its timeout. Effects until then remain."),
  restarted: z
    .boolean()
    .describe("True if the kernel was lost during this cell or before it. Earlier variables are gone."),
  truncated: z
    .array(
      z.object({
        field: z
          .string()
          .describe("Part that was cut, such as `stdout`, `results[0].html` or `results[0].table.rows`."),
        limit: z
          .int()
          .describe(
            "Maximum that was kept, in the unit of `size`. 0 for a format without a field of its own.",
          ),
        size: z
          .int()
          .describe("Size of the whole part: bytes, or the number of results, rows, columns or points."),
      }),
    )
    .describe("Parts of the result that were cut, with their limits and sizes. Empty if there are none."),
  egress_denied: EgressDenied,
};

export const CodeSummary = z.object(summary);
export type CodeSummary = z.output<typeof CodeSummary>;

export const CodeResult = z
  .object({
    results: z.array(CodeItem).describe("Values and displays of the cell, in order; at most 100."),
    stdout: z.string().describe("Standard output of the cell as text; the first 8 MiB."),
    stderr: z.string().describe("Standard error of the cell as text; the first 8 MiB."),
    error: CodeError.nullable().describe(
      "Exception of the cell; the status is still 200. A bash cell whose last command failed has `ExitStatus` with the number as its value.",
    ),
    ...summary,
  })
  .meta({ id: "CodeResult" });
export type CodeResult = z.output<typeof CodeResult>;

/** `data:` of a stream's event, by the name in `event:`. */
export const CodeEvent = z
  .union([
    z
      .object({ stream: outputStream, text: z.string().describe("Piece of output that the cell wrote.") })
      .describe("Data of the event `stream`: a piece of output."),
    CodeItem.describe("Data of the event `result`: a value or display of the cell."),
    CodeError.describe("Data of the event `error`: the exception of the cell."),
    CodeSummary.describe("Data of the event `done`: the end of the cell."),
  ])
  .meta({ id: "CodeEvent" });

export const ContextCreate = z
  .strictObject({
    language: language
      .default("python")
      .describe("Language of the kernel. Default: python. typescript and bash are extensions."),
    cwd: z
      .string()
      .max(4095)
      .startsWith("/", { error: "must be an absolute path" })
      .refine(noNul, { error: "must not contain NUL" })
      .default("/workspace")
      .describe("Working directory of the kernel, which must exist. Default: /workspace."),
  })
  .meta({ id: "CodeContextCreate" });
export type ContextCreate = z.output<typeof ContextCreate>;

export const CodeContext = z
  .object({
    id: z
      .string()
      .describe("Id of the context: `ctx_` and 20 letters and digits, or a default one such as `default`."),
    language: language.describe("Language of the kernel, fixed at creation."),
    cwd: z.string().describe("Absolute path of the directory in which the kernel starts."),
    created_at: z.iso.datetime().describe("Time of creation."),
    execution_count: z
      .int()
      .describe("Number of cells run since the kernel started. A restart sets it to 0."),
    status: z
      .enum(["idle", "busy"])
      .describe("`busy` while a cell runs or the kernel starts, otherwise `idle`."),
  })
  .meta({ id: "CodeContext" });
export type CodeContext = z.output<typeof CodeContext>;

export const CodeContextList = z
  .object({ items: z.array(CodeContext).describe("All contexts of the sandbox, oldest first; at most 20.") })
  .meta({ id: "CodeContextList" });
