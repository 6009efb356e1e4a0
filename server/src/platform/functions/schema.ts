/** Request and response schemas of functions. */
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import { workspaceName } from "#accounts/workspaces.ts";
import type { App } from "#app.ts";
import type { KeptLine } from "#machines/host/log-rings.ts";
import { urlOf, Variables, VariablesChange } from "../environments/schema.ts";
import { pageFields } from "../input/schema.ts";
import { periodNames } from "../metrics/periods.ts";
import { RequestMetrics } from "../metrics/schema.ts";
import { progressSchema } from "../progress.ts";
import { Slug } from "../projects/schema.ts";
import { maxDependencies, problemIn } from "./deploy/dependencies.ts";
import type { FunctionParts } from "./parts.ts";
import { maxMemoryMb, minMemoryMb } from "./limits.ts";
import type { StepLogPiece } from "../step-log.ts";
import type { FunctionRow, ShownVersionRow, VersionSummaryRow } from "./store.ts";
import { type VersionStep, versionSteps } from "./tables.ts";
import type { VersionNews } from "./versions/version-news.ts";

export const DeployQuery = z.strictObject({
  wait: z
    .boolean()
    .default(true)
    .describe(
      "Wait for the end of the deploy, at most two minutes. `false` responds at once; poll the function. Default: true.",
    ),
});

const maxCodeBytes = 1024 ** 2;
/** Limit of a request body in bytes. The limit is larger than that of the code, because JSON escapes the code. */
export const bodyLimit = 4 * 1024 ** 2;

export const FunctionParams = z.object({ function_id: z.guid().describe("Id (UUID) of the function.") });

const runtime = z.enum(["nodejs", "python"]);
const authMode = z.enum(["none", "api_key"]);

const HandlerCode = z
  .string()
  .min(1)
  .refine((code) => Buffer.byteLength(code) <= maxCodeBytes, { error: "must be at most 1 MiB" })
  .refine((code) => !code.includes("\0"), { error: "must not contain NUL" })
  .describe(
    "Code of the function in one file, at most 1 MiB. Node.js: a module with `export default async (request) => Response`. Python: `def handler(request)`.",
  )
  .meta({ example: 'export default async (request) => new Response("Hello");' });

const Dependencies = z
  .record(z.string(), z.string())
  .refine((all) => Object.keys(all).length <= maxDependencies, {
    error: `must have at most ${maxDependencies} packages`,
  })
  .describe("Dependencies, package to version, from npm or PyPI. URLs, repositories and aliases are refused.")
  .meta({ example: { "date-fns": "^4.1.0" } });

/** True for variables that the server itself sets. Variables of the owner must not replace them. */
const isOwn = (name: string): boolean => name === "PORT" || name.startsWith("KONTOR_");
const own = { error: "PORT and names that begin with KONTOR_ are set by the server" };
const free = (all: Record<string, unknown>): boolean => !Object.keys(all).some(isOwn);

const IdleTimeout = z
  .int()
  .min(10)
  .max(86_400)
  .describe(
    "Seconds without a request after which an instance is put to sleep, 10 to 86400. Default at creation: 300.",
  );
const Timeout = z
  .int()
  .min(1)
  .max(300)
  .describe("Maximum duration of one request in seconds, 1 to 300. Default at creation: 30.");
const Memory = z
  .int()
  .min(minMemoryMb)
  .max(maxMemoryMb)
  .describe(
    "Memory of each instance in MiB, at least 128. Maximum: 256 on starter, 512 on pro, 1024 on team. Default: 256.",
  );
const node = z.string().max(64).describe("Code of a region, such as `eu-1`.");
const workspace = z.string().max(64).describe("`personal` or a team id.");

export const FunctionCreate = z
  .strictObject({
    name: Slug,
    runtime: runtime.describe("Language runtime: Node.js 22 or Python 3.13. Fixed at creation."),
    handler_code: HandlerCode,
    dependencies: Dependencies.default({}),
    auth_mode: authMode
      .default("none")
      .describe(
        "Access to the function's URL. `none`: public. `api_key`: the key in `x-api-key` or `Authorization: Bearer`, else 401. Default: `none`.",
      ),
    idle_timeout_seconds: IdleTimeout.default(300),
    env_vars: Variables.refine(free, own)
      .default({})
      .describe(
        "Environment variables, name to value; at most 200 and 64 KiB in all. `PORT` and `KONTOR_…` are reserved. Default: none.",
      ),
    memory_mb: Memory.default(256),
    timeout_seconds: Timeout.default(30),
    node: node
      .nullish()
      .describe("Code of the region that runs the function. Default: the first region of the installation."),
    workspace: workspace
      .nullish()
      .describe(
        "`personal` or a team id. Default: the workspace the token is bound to, else the personal one.",
      ),
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
    name: Slug.optional().describe("New name. Fixed once the function is deployed."),
    runtime: runtime.optional().describe("Accepted only with the current value."),
    handler_code: HandlerCode.optional().describe("New code. Applies at the next deploy."),
    dependencies: Dependencies.optional().describe(
      "All dependencies; replaces the stored ones. Applies at the next deploy.",
    ),
    auth_mode: authMode
      .optional()
      .describe("Access to the function's URL. A change to `api_key` returns a new key, only this once."),
    idle_timeout_seconds: IdleTimeout.optional(),
    env_vars: VariablesChange.refine(free, own)
      .optional()
      .describe(
        "Changes to the stored variables. A string sets a variable, null removes it, and `********` or the stored value's hint keeps it. Applies at the next start.",
      ),
    memory_mb: Memory.optional().describe(
      "Memory of each instance in MiB, within the plan. Applies when an instance next starts.",
    ),
    timeout_seconds: Timeout.optional(),
    node: node.optional().describe("Accepted only with the current value."),
    workspace: workspace.nullish().describe("Accepted only with the current value."),
  })
  .meta({ id: "FunctionUpdate" });
export type FunctionUpdate = z.output<typeof FunctionUpdate>;

const FunctionProgress = progressSchema("FunctionProgress", ["queued", ...versionSteps]);

const summary = {
  id: z.guid().describe("Id (UUID) of the function."),
  name: z
    .string()
    .describe("Name, unique over all projects and functions; the first label of the host in `url`."),
  slug: z.string().describe("Same as `name`."),
  url: z
    .string()
    .describe("Public URL of the function. Serves requests after the first deploy.")
    .meta({ example: "https://hello.fn.apps.example.com" }),
  runtime: runtime.describe("Language runtime: Node.js 22 or Python 3.13."),
  auth_mode: authMode.describe(
    "Access to the function's URL. `none`: public. `api_key`: the key in `x-api-key` or `Authorization: Bearer`, else 401.",
  ),
  api_key_hint: z
    .string()
    .nullable()
    .describe("First 8 characters of the key, such as `fnk_3k9x`. Null without a key."),
  idle_timeout_seconds: z
    .int()
    .describe("Seconds without a request after which an instance is put to sleep."),
  memory_mb: z.int().describe("Memory of each instance in MiB."),
  timeout_seconds: z.int().describe("Maximum duration of one request in seconds."),
  node: z.string().describe("Code of the region that runs the function."),
  workspace: z.string().describe("Workspace of the function: `personal` or a team id."),
  status: z
    .enum(["created", "building", "live", "idle", "failed"])
    .describe(
      "`created`: not deployed yet. `building`: a deploy is under way; an earlier version stays live. `idle`: live, but no instance runs; a request wakes one. `failed`: the deploy failed, and no earlier version is live.",
    ),
  progress: FunctionProgress.nullable().describe("Progress of the running deploy. Null if none runs."),
  pending_deploy: z.boolean().describe("True if code or dependencies differ from the live version."),
  last_deployed_at: z.iso
    .datetime()
    .nullable()
    .describe("Time at which a version last became live. Null before the first."),
  error: z.string().nullable().describe("Reason why the last deploy failed. Null if it did not fail."),
  created_at: z.iso.datetime().describe("Time of creation."),
  updated_at: z.iso.datetime().describe("Time of the last change by the API. Deploys do not count."),
};

export const FunctionSummary = z.object(summary).meta({ id: "FunctionSummary" });
export type FunctionSummary = z.output<typeof FunctionSummary>;

const record = {
  ...summary,
  handler_code: z.string().describe("Stored code. It is live after the next deploy; see `pending_deploy`."),
  dependencies: z
    .record(z.string(), z.string())
    .describe("Stored dependencies, package to version. Live after the next deploy."),
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
      .describe("New key, only in this response. Null if the call created none, and in a replayed response."),
  })
  .meta({ id: "FunctionWithKey" });
export type FunctionWithKey = z.output<typeof FunctionWithKey>;

export const FunctionListResponse = z
  .object({
    items: z
      .array(FunctionSummary)
      .describe("Functions of this page, newest first, without code. Get a single function for its code."),
    ...pageFields,
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
    method: z
      .enum(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
      .default("POST")
      .describe("HTTP method of the request. Default: `POST`."),
    path: z
      .string()
      .max(8192)
      .regex(/^\/[\x21\x22\x24-\x7e]*$/, {
        error: "must begin with / and be encoded as in a URL, without a fragment",
      })
      .default("/")
      .describe("Path of the request, with or without a query. Default: `/`."),
    query: z
      .record(z.string(), z.union([scalar, z.array(scalar)]))
      .default({})
      .describe("Query parameters, added to the query of `path`. Default: none."),
    headers: z
      .record(HeaderName, HeaderValue)
      .refine((all) => Object.keys(all).length <= 100, { error: "must have at most 100 entries" })
      .default({})
      .describe(
        "Request headers, at most 100. Drops connection and forwarding headers, `host`, `content-length`, `x-api-key`, `x-request-id` and `x-kontor-…`. Default: none.",
      ),
    body: z
      .unknown()
      .optional()
      .describe("Request body, at most 6 MiB. A string is sent as it is, any other value as JSON."),
    body_base64: z.base64().optional().describe("Binary request body in base64, in place of `body`."),
  })
  .refine(({ body, body_base64 }) => body === undefined || body_base64 === undefined, {
    path: ["body_base64"],
    error: "cannot be combined with body; send only one of them",
  })
  .meta({ id: "InvokeRequest" });
export type InvokeRequest = z.output<typeof InvokeRequest>;

/** Limit of a request body in bytes: 6 MiB in base64, or as text with JSON escapes. */
export const invokeBodyLimit = 13 * 1024 ** 2;

export const InvokeResponse = z
  .object({
    status: z.int().describe("Status of the function's response, its own errors included."),
    headers: z
      .record(z.string(), z.string())
      .describe(
        "Response headers, names in lower case. Repeated ones are joined by `, `; `set-cookie` by line breaks.",
      ),
    body: z.string().nullable().describe("Response body as text. Null if the body is not UTF-8."),
    body_base64: z.string().nullable().describe("Response body in base64. Null if the body is UTF-8 text."),
    duration_ms: z
      .number()
      .describe("Time from the request to the complete response in milliseconds, wakes included."),
    cold_start: z
      .boolean()
      .describe("True if no instance could be woken, so that the request waited for a new one."),
    wake_ms: z
      .number()
      .nullable()
      .describe("Time that the request waited for an instance, in milliseconds. Null if it did not wait."),
  })
  .meta({ id: "InvokeResponse" });
export type InvokeResponse = z.output<typeof InvokeResponse>;

export const FunctionLogsQuery = z.strictObject({
  lines: z
    .int()
    .min(1)
    .max(1000)
    .default(200)
    .describe("Number of lines to return, the newest ones. Default: 200."),
  follow: z
    .boolean()
    .default(false)
    .describe(
      "Stream these lines, then each new one, as server-sent events. Send the last `id:` as `Last-Event-ID` to resume. Default: false.",
    ),
});

export const FunctionLogLine = z
  .object({
    at: z.iso.datetime().describe("Time at which the line was written."),
    stream: z
      .enum(["stdout", "stderr", "system"])
      .describe("Stream of the line. `system`: a message of the server about the function."),
    level: z
      .enum(["debug", "info", "warn", "error"])
      .nullable()
      .describe("Log level. Null for plain output."),
    request_id: z
      .string()
      .nullable()
      .describe("Id of the request that wrote the line. Null outside of a request."),
    text: z.string().describe("Line without its line break."),
  })
  .meta({ id: "FunctionLogLine" });
export type FunctionLogLine = z.output<typeof FunctionLogLine>;

export const FunctionLogs = z
  .object({
    lines: z.array(FunctionLogLine).describe("Lines, oldest first."),
    truncated: z.boolean().describe("True if older lines exist that are not in `lines`."),
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

export const FunctionMetricsQuery = z.strictObject({
  period: z.enum(periodNames).default("1h").describe("Period that ends now. Default: `1h`."),
});

export const FunctionMetrics = RequestMetrics.extend({
  cold_starts: z.int().describe("Number of new instances that were started because requests waited."),
  p50_wake_ms: z
    .number()
    .nullable()
    .describe("Median duration of wakes and starts of instances in milliseconds. Null without any."),
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

/** Returns the response of a function. No other function converts a row to JSON. */
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
  version_id: z
    .string()
    .regex(/^fnv_[a-z0-9]{1,40}$/, { error: "must be the id of a version, fnv_…" })
    .describe("Id of the version, such as `fnv_3k9x0c1m5r7t`."),
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
  id: z.string().describe("Id of the version.").meta({ example: "fnv_3k9x0c1m5r7t" }),
  function_id: z.guid().describe("Id (UUID) of the function."),
  number: z.int().describe("Sequence number within the function, from 1."),
  status: z
    .enum(["building", "live", "failed", "superseded"])
    .describe("`superseded`: was live before a later version."),
  runtime: runtime.describe("Language runtime: Node.js 22 or Python 3.13."),
  trigger: z
    .object({
      kind: z
        .enum(["api", "console", "agent", "rollback"])
        .describe(
          "Origin of the deploy. `api`: a token. `console`: a session. `agent`: an agent. `rollback`: any of them, by a rollback.",
        ),
      actor: z
        .object({
          kind: z
            .string()
            .describe("Kind of the actor: `user`, `api_token`, `worker` (an agent) or `system`."),
          id: z
            .string()
            .describe("Id (UUID) of the account or agent identity, or id of the token (`tok_…`)."),
          label: z
            .string()
            .describe("Name of the actor at that time: e-mail address, token name or agent name."),
        })
        .describe("Actor that started the deploy."),
    })
    .nullable()
    .describe("Cause and actor of the deploy. Null for versions that are older than this field."),
  rolled_back_from: z
    .string()
    .nullable()
    .describe("Id of the version that a rollback restored. Null for a deploy."),
  image_kept: z.boolean().describe("True if the image is kept, so that a rollback needs no build."),
  image_reused: z.boolean().describe("True if the image of an equal version was reused without a build."),
  progress: FunctionProgress.nullable().describe("Progress of the deploy. Null after its end."),
  error: z.string().nullable().describe("Reason of a failure. Null if the version did not fail."),
  created_at: z.iso.datetime().describe("Time at which the deploy was requested."),
  finished_at: z.iso.datetime().nullable().describe("Time at which the deploy ended. Null while `building`."),
};

export const FunctionVersionSummary = z.object(versionSummary).meta({ id: "FunctionVersionSummary" });
export type FunctionVersionSummary = z.output<typeof FunctionVersionSummary>;

export const FunctionVersion = z
  .object({
    ...versionSummary,
    handler_code: z.string().describe("Code of this version."),
    dependencies: z
      .record(z.string(), z.string())
      .describe("Dependencies of this version, package to version as requested."),
  })
  .meta({ id: "FunctionVersion" });

const buildEntry = {
  step: z.enum(versionSteps).describe("Step that wrote the output: the build, or the first start."),
  at: z.iso.datetime().describe("Time of the output."),
  text: z.string().describe("Complete lines of output, at least one."),
};
export const FunctionBuildLog = z
  .object({
    entries: z.array(z.object(buildEntry)).describe("Log entries, oldest first."),
    truncated: z.boolean().describe("True if the build printed more than the 4 MiB that are kept."),
  })
  .meta({ id: "FunctionBuildLog" });
export const FunctionBuildEvent = z
  .discriminatedUnion("kind", [
    z.object({ kind: z.literal("log").describe("`log`: output of a step."), ...buildEntry }),
    z.object({
      kind: z.literal("status").describe("`status`: change of the version's status."),
      status: versionSummary.status,
      error: versionSummary.error,
    }),
  ])
  .meta({ id: "FunctionBuildEvent" });

export function toVersionSummary(row: VersionSummaryRow): FunctionVersionSummary {
  const { trigger_kind: kind, trigger_actor: by, trigger_user_email: email } = row;
  return {
    id: row.id,
    function_id: row.function_id,
    number: row.number,
    status: row.state,
    runtime: row.runtime,
    trigger:
      kind === null || by === null
        ? null
        : { kind, actor: by.kind === "user" && email !== null ? { ...by, label: email } : by },
    rolled_back_from: row.rolled_back_from,
    image_kept: row.image_id !== null,
    image_reused: row.image_reused,
    progress: row.state === "building" ? row.progress : null,
    error: row.error,
    created_at: row.created_at.toISOString(),
    finished_at: row.finished_at?.toISOString() ?? null,
  };
}

export function toVersion(row: ShownVersionRow): z.output<typeof FunctionVersion> {
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
