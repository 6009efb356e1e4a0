/** The wire of functions. */
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { workspaceName } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { KeptLine } from "#machines/log-rings.ts";
import { urlOf, Variables, VariablesChange } from "../environments/schema.ts";
import { periodNames } from "../metrics/request-metrics.ts";
import { RequestMetrics } from "../metrics/schema.ts";
import { progressSchema } from "../progress.ts";
import { Slug } from "../projects/schema.ts";
import { maxDependencies, problemIn } from "./dependencies.ts";
import type { FunctionParts } from "./parts.ts";
import { maxMemoryMb, minMemoryMb } from "./limits.ts";
import type { StepLogPiece } from "../step-log.ts";
import type { FunctionRow, VersionRow, VersionSummaryRow } from "./store.ts";
import { type VersionStep, versionSteps } from "./tables.ts";
import type { VersionNews } from "./versions.ts";

export const DeployQuery = z.strictObject({
  wait: z.boolean().default(true).describe("`false` answers at once; the function says how it goes on."),
});

const maxCodeBytes = 1024 ** 2;
/** Of a body: code in JSON takes more room than it has. */
export const bodyLimit = 4 * 1024 ** 2;

export const FunctionParams = z.object({ function_id: z.guid() });

const runtime = z.enum(["nodejs", "python"]);
const authMode = z.enum(["none", "api_key"]);

const HandlerCode = z
  .string()
  .min(1)
  .refine((code) => Buffer.byteLength(code) <= maxCodeBytes, { error: "must be at most 1 MiB" })
  .refine((code) => !code.includes("\0"), { error: "must not contain NUL" })
  .describe(
    "One file. Node.js: a module with `export default async (request) => Response`. Python: `def handler(request)`.",
  )
  .meta({ example: 'export default async (request) => new Response("Hello");' });

const Dependencies = z
  .record(z.string(), z.string())
  .refine((all) => Object.keys(all).length <= maxDependencies, {
    error: `must be at most ${maxDependencies} packages`,
  })
  .describe("Package to version, of the runtime's registry. No addresses, repositories or aliases.")
  .meta({ example: { "date-fns": "^4.1.0" } });

/** What the server itself tells a function; its own variables must not say otherwise. */
const isOwn = (name: string): boolean => name === "PORT" || name.startsWith("KONTOR_");
const own = { error: "PORT and names that begin with KONTOR_ are set by the server" };
const free = (all: Record<string, unknown>): boolean => !Object.keys(all).some(isOwn);

const IdleTimeout = z
  .int()
  .min(10)
  .max(86_400)
  .describe("After so long without a request an instance is put to sleep.");
const Timeout = z.int().min(1).max(300).describe("What one request may take.");
const Memory = z.int().min(minMemoryMb).max(maxMemoryMb).describe("Of each instance; a plan allows so much.");
const node = z.string().max(64).describe("The code of a region.");
const workspace = z.string().max(64).describe("`personal` or a team id.");

export const FunctionCreate = z
  .strictObject({
    name: Slug,
    runtime,
    handler_code: HandlerCode,
    dependencies: Dependencies.default({}),
    auth_mode: authMode.default("none"),
    idle_timeout_seconds: IdleTimeout.default(300),
    env_vars: Variables.refine(free, own).default({}),
    memory_mb: Memory.default(256),
    timeout_seconds: Timeout.default(30),
    node: node.nullish(),
    workspace: workspace.nullish(),
  })
  .superRefine((input, context) => {
    const wrong = problemIn(input.runtime, input.dependencies);
    if (wrong)
      context.addIssue({ code: "custom", path: ["dependencies", wrong.name], message: wrong.problem });
  })
  .meta({ id: "FunctionCreate" });
export type FunctionCreate = z.output<typeof FunctionCreate>;

export const FunctionUpdate = z
  .strictObject({
    name: Slug.optional().describe("Stays once it was deployed."),
    runtime: runtime.optional().describe("Stays as it is."),
    handler_code: HandlerCode.optional().describe("Applies at the next deploy."),
    dependencies: Dependencies.optional().describe(
      "All of them, in place of those that are there. Applies at the next deploy.",
    ),
    auth_mode: authMode.optional().describe("To `api_key`: the answer holds a new key, this once."),
    idle_timeout_seconds: IdleTimeout.optional(),
    env_vars: VariablesChange.refine(free, own)
      .optional()
      .describe(
        "Changes to the stored variables. A string sets a variable, null removes it, and `********` or the stored value's hint keeps it. Applies at the next start.",
      ),
    memory_mb: Memory.optional().describe("Applies at the next start."),
    timeout_seconds: Timeout.optional(),
    node: node.optional().describe("Stays as it is."),
    workspace: workspace.nullish().describe("Stays as it is."),
  })
  .meta({ id: "FunctionUpdate" });
export type FunctionUpdate = z.output<typeof FunctionUpdate>;

export const FunctionProgress = progressSchema("FunctionProgress", ["queued", ...versionSteps]);

const summary = {
  id: z.guid(),
  name: z.string(),
  slug: z.string(),
  url: z.string().meta({ example: "https://hello.fn.apps.example.com" }),
  runtime,
  auth_mode: authMode,
  api_key_hint: z.string().nullable().describe("What the key begins with."),
  idle_timeout_seconds: z.int(),
  memory_mb: z.int(),
  timeout_seconds: z.int(),
  node: z.string(),
  workspace: z.string(),
  status: z
    .enum(["created", "building", "live", "idle", "failed"])
    .describe(
      "`building`: a deploy is under way, and an earlier version answers until it ends well. `idle`: live, and no instance runs; a request wakes one. `failed`: the deploy failed, and there is no earlier version.",
    ),
  progress: FunctionProgress.nullable().describe("Progress of the running deploy. Null if none runs."),
  pending_deploy: z.boolean().describe("Code or dependencies changed since what is live was deployed."),
  last_deployed_at: z.iso.datetime().nullable(),
  error: z.string().nullable().describe("Why the last deploy failed; null where it went live."),
  created_at: z.iso.datetime(),
  updated_at: z.iso.datetime(),
};

export const FunctionSummary = z.object(summary).meta({ id: "FunctionSummary" });
export type FunctionSummary = z.output<typeof FunctionSummary>;

const record = {
  ...summary,
  handler_code: z.string(),
  dependencies: z.record(z.string(), z.string()),
};

export const FunctionResponse = z.object(record).meta({ id: "FunctionResponse" });
export type FunctionRecord = z.output<typeof FunctionResponse>;

export const FunctionWithKey = z
  .object({
    ...record,
    api_key: z
      .string()
      .meta({ "x-kontor-secret": true })
      .nullable()
      .describe(
        "A key that was made by this call, this once; null where none was, and in a replayed answer.",
      ),
  })
  .meta({ id: "FunctionWithKey" });
export type FunctionWithKey = z.output<typeof FunctionWithKey>;

export const FunctionListResponse = z
  .object({
    items: z.array(FunctionSummary).describe("Without their code, which the single get answers."),
    total: z.int(),
    skip: z.int(),
    limit: z.int(),
  })
  .meta({ id: "FunctionListResponse" });

const HeaderName = z
  .string()
  .max(256)
  .regex(/^(?!__proto__$)[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, { error: "must be the name of a header" });
const HeaderValue = z
  .string()
  .max(8192)
  .regex(/^[\t\x20-\x7e\x80-\xff]*$/, { error: "must be one line without control characters" });
const scalar = z.union([z.string(), z.number(), z.boolean()]);

export const InvokeRequest = z
  .strictObject({
    method: z.enum(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]).default("POST"),
    path: z
      .string()
      .max(8192)
      .regex(/^\/[\x21\x22\x24-\x7e]*$/, {
        error: "must begin with / and be encoded as in a URL, without a fragment",
      })
      .default("/")
      .describe("With a query or without."),
    query: z
      .record(z.string(), z.union([scalar, z.array(scalar)]))
      .default({})
      .describe("Added to the path's own."),
    headers: z
      .record(HeaderName, HeaderValue)
      .refine((all) => Object.keys(all).length <= 100, { error: "must be at most 100" })
      .default({})
      .describe("What belongs to a connection, or is the server's to say, is left out."),
    body: z.unknown().optional().describe("A text is sent as it is, any other value as JSON. At most 6 MiB."),
    body_base64: z.base64().optional().describe("In place of `body`, for what is no text."),
  })
  .refine(({ body, body_base64 }) => body === undefined || body_base64 === undefined, {
    path: ["body_base64"],
    error: "is given in place of body, not beside it",
  })
  .meta({ id: "InvokeRequest" });
export type InvokeRequest = z.output<typeof InvokeRequest>;

/** Of the request: 6 MiB in base64, or as text with what JSON escapes. */
export const invokeBodyLimit = 13 * 1024 ** 2;

export const InvokeResponse = z
  .object({
    status: z.int().describe("What the function answered; its own errors are in here."),
    headers: z.record(z.string(), z.string()),
    body: z.string().nullable().describe("Null where it is no text."),
    body_base64: z.string().nullable().describe("Where it is no text."),
    duration_ms: z.number().describe("From the request to the whole answer, a wake included."),
    cold_start: z.boolean().describe("It waited for an instance that was started from nothing."),
    wake_ms: z.number().nullable().describe("How long it waited for an instance; null where one was awake."),
  })
  .meta({ id: "InvokeResponse" });
export type InvokeResponse = z.output<typeof InvokeResponse>;

export const FunctionLogsQuery = z.strictObject({
  lines: z.int().min(1).max(1000).default(200).describe("The last so many."),
  follow: z
    .boolean()
    .default(false)
    .describe(
      "Answers server-sent events: those lines, then each as it comes. `Last-Event-ID` goes on behind that line.",
    ),
});

export const FunctionLogLine = z
  .object({
    at: z.iso.datetime(),
    stream: z
      .enum(["stdout", "stderr", "system"])
      .describe("`system`: said by the server about the function."),
    level: z.enum(["debug", "info", "warn", "error"]).nullable().describe("Null for plain output."),
    request_id: z.string().nullable().describe("Of the request that said it; null outside of any."),
    text: z.string(),
  })
  .meta({ id: "FunctionLogLine" });
export type FunctionLogLine = z.output<typeof FunctionLogLine>;

export const FunctionLogs = z
  .object({
    lines: z.array(FunctionLogLine).describe("The oldest first."),
    truncated: z.boolean().describe("There were more before."),
  })
  .meta({ id: "FunctionLogs" });
export type FunctionLogs = z.output<typeof FunctionLogs>;

export function toLine({ at, stream, level, request_id, text }: KeptLine): FunctionLogLine {
  return {
    at: new Date(at).toISOString(),
    stream,
    level: level ?? null,
    request_id: request_id ?? null,
    text,
  };
}

export const FunctionMetricsQuery = z.strictObject({ period: z.enum(periodNames).default("1h") });

export const FunctionMetrics = RequestMetrics.extend({
  cold_starts: z.int().describe("Starts from nothing that somebody waited for."),
  p50_wake_ms: z.number().nullable().describe("Of wakes of any kind; null where there was none."),
}).meta({ id: "FunctionMetrics" });
export type FunctionMetrics = z.output<typeof FunctionMetrics>;

/** Fields of the record that a PATCH accepts and ignores. */
export const readOnlyFields = [...Object.keys(record), "api_key"].filter(
  (field) => !(field in FunctionUpdate.shape),
);

export function toSummary(
  app: Pick<App, "config">,
  parts: Pick<FunctionParts, "isIdle">,
  actor: Actor,
  row: FunctionRow,
): FunctionSummary {
  return {
    id: row.id,
    name: row.name,
    slug: row.name,
    url: urlOf(app, `${row.name}.fn`),
    runtime: row.runtime,
    auth_mode: row.auth_mode,
    api_key_hint: row.api_key_hint,
    idle_timeout_seconds: row.idle_timeout_seconds,
    memory_mb: row.memory_mb,
    timeout_seconds: row.timeout_seconds,
    node: row.region,
    workspace: workspaceName(actor, row.workspace_id),
    status: statusOf(parts, row),
    progress: row.is_building ? row.progress : null,
    pending_deploy: row.pending_deploy,
    last_deployed_at: row.last_deployed_at?.toISOString() ?? null,
    error: row.error,
    created_at: row.created_at.toISOString(),
    updated_at: row.updated_at.toISOString(),
  };
}

/** The only way from a row to JSON. */
export function toFunction(
  app: Pick<App, "config">,
  parts: Pick<FunctionParts, "isIdle">,
  actor: Actor,
  row: FunctionRow,
): FunctionRecord {
  return {
    ...toSummary(app, parts, actor, row),
    handler_code: row.handler_code,
    dependencies: row.dependencies,
  };
}

export const VersionParams = FunctionParams.extend({
  version_id: z.string().regex(/^fnv_[a-z0-9]{1,40}$/, { error: "must be the id of a version, fnv_…" }),
});

export const VersionRollbackQuery = DeployQuery.extend({
  allow_rebuild: z
    .boolean()
    .default(false)
    .describe("Build the version's code again if its image is pruned. Default: false."),
});

export const VersionLogsQuery = z.strictObject({
  follow: z
    .boolean()
    .default(false)
    .describe("Stream the existing log and then each new line as server-sent events. Default: false."),
});

const versionSummary = {
  id: z.string().meta({ example: "fnv_3k9x0c1m5r7t" }),
  function_id: z.guid(),
  number: z.int().describe("Sequence number within the function, from 1."),
  status: z
    .enum(["building", "live", "failed", "superseded"])
    .describe("`superseded`: was live before a later version."),
  runtime,
  trigger: z
    .object({
      kind: z.enum(["api", "console", "agent", "rollback"]),
      actor: z.object({ kind: z.string(), id: z.string(), label: z.string() }),
    })
    .nullable()
    .describe("Null for versions older than this field."),
  rolled_back_from: z
    .string()
    .nullable()
    .describe("Id of the version that a rollback restored. Null for a deploy."),
  image_kept: z.boolean().describe("True if the image is kept, so that a rollback needs no build."),
  image_reused: z.boolean().describe("True if the image of an equal version was reused without a build."),
  progress: FunctionProgress.nullable().describe("Progress of the deploy. Null after its end."),
  error: z.string().nullable().describe("Reason of a failure. Null if the version did not fail."),
  created_at: z.iso.datetime(),
  finished_at: z.iso.datetime().nullable(),
};

export const FunctionVersionSummary = z.object(versionSummary).meta({ id: "FunctionVersionSummary" });
export type FunctionVersionSummary = z.output<typeof FunctionVersionSummary>;

export const FunctionVersion = z
  .object({ ...versionSummary, handler_code: z.string(), dependencies: z.record(z.string(), z.string()) })
  .meta({ id: "FunctionVersion" });

const buildEntry = {
  step: z.enum(versionSteps),
  at: z.iso.datetime(),
  text: z.string().describe("One or more complete lines of output."),
};
export const FunctionBuildLog = z
  .object({
    entries: z.array(z.object(buildEntry)).describe("Log entries, oldest first."),
    truncated: z.boolean().describe("True if the build printed more than the 4 MiB that are kept."),
  })
  .meta({ id: "FunctionBuildLog" });
export const FunctionBuildEvent = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("log"), ...buildEntry }),
    z.object({ kind: z.literal("status"), status: versionSummary.status, error: z.string().nullable() }),
  ])
  .meta({ id: "FunctionBuildEvent" });

export function toVersionSummary(row: VersionSummaryRow): FunctionVersionSummary {
  const { trigger_kind: kind, trigger_actor: by } = row;
  return {
    id: row.id,
    function_id: row.function_id,
    number: row.number,
    status: row.state,
    runtime: row.runtime,
    trigger: kind === null || by === null ? null : { kind, actor: by },
    rolled_back_from: row.rolled_back_from,
    image_kept: row.image_id !== null,
    image_reused: row.image_reused,
    progress: row.state === "building" ? row.progress : null,
    error: row.error,
    created_at: row.created_at.toISOString(),
    finished_at: row.finished_at?.toISOString() ?? null,
  };
}

export function toVersion(row: VersionRow): z.output<typeof FunctionVersion> {
  const { handler_code, dependencies } = row;
  return { ...toVersionSummary(row), handler_code, dependencies };
}

export function toBuildEntry({ step, at, text }: StepLogPiece<VersionStep>) {
  return { step, at: at.toISOString(), text };
}

export function toBuildEvent(news: VersionNews): z.output<typeof FunctionBuildEvent> {
  return "status" in news
    ? { kind: "status", status: news.status, error: news.error }
    : { kind: "log", ...toBuildEntry(news) };
}

function statusOf(parts: Pick<FunctionParts, "isIdle">, row: FunctionRow): FunctionSummary["status"] {
  if (row.is_building) return "building";
  if (row.live_version_id !== null) return parts.isIdle(row.id) ? "idle" : "live";
  return row.error === null ? "created" : "failed";
}
