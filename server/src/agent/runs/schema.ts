/** Wire format of runs. */
import { z } from "zod";
import { pageQuery } from "../cursor.ts";
import { EndUserId } from "../end-users/id.ts";
import { HistoryMessage, Input } from "./api/input.ts";
import { Approval, Approvals, toApproval } from "../approvals/schema.ts";
import { finishReasons, runErrorCodes, runStatuses } from "./states.ts";
import type { StartedCall } from "../calls/calls.ts";
import type { PendingApproval } from "../approvals/approvals.ts";
import type { SignInWait } from "../oauth/waits/waits.ts";
import type { EventRow, RunView, SignInLink } from "./store.ts";
import { textEvents, textFields } from "./journal/text-events.ts";

const timestamp = z.iso.datetime();

const triggerTypes = ["api", "schedule", "webhook"] as const;

const runParam = z.string().max(64).describe("Id of the run: `run_…`.");
const runId = z.string().describe("Id of the run: `run_…`.");
const sessionId = z.string().describe("Id of the session: `ses_…`.");
const endUserOfRun = z.string().nullable().describe("End user of the run. Null if it has none.");

export const RunParams = z.strictObject({ run_id: runParam });

export const Invoke = z
  .strictObject({
    input: Input.describe("Input for the agent: a text, or 1 to 50 parts with text, images or files."),
    session_id: z
      .string()
      .max(64)
      .optional()
      .describe("Id of the session to continue: `ses_…`. Default: a new session."),
    end_user_id: EndUserId.optional().describe(
      "End user of the session, fixed when it is created. Default: none for a new session, else the session's own.",
    ),
    qualifier: z
      .string()
      .min(1)
      .max(64)
      .optional()
      .describe(
        "Version of a new session: an alias, a number, or `latest`. Default `prod`. A number other than the session's own is refused with `session_pinned` unless `upgrade` is true.",
      ),
    ephemeral: z
      .boolean()
      .optional()
      .describe("Ends the new session with its run; not allowed with `session_id`. Default false."),
    upgrade: z
      .boolean()
      .default(false)
      .describe("True pins the existing session to the version of `qualifier`. Default false."),
    messages: z
      .array(HistoryMessage)
      .max(500)
      .optional()
      .describe("Earlier messages that a new session begins with, at most 500. Default: none."),
    wait_s: z
      .number()
      .min(0)
      .max(300)
      .default(30)
      .describe("Seconds to wait for the outcome, from 0 to 300. Ignored with `stream`. Default 30."),
    stream: z
      .boolean()
      .default(false)
      .describe("True streams the run's events instead of returning its outcome. Default false."),
  })
  .meta({ id: "AgentInvoke" });
export type Invoke = z.output<typeof Invoke>;

const outcome = {
  run_id: runId,
  session_id: sessionId,
  status: z
    .enum(runStatuses)
    .describe("State of the run. `pending_approval` means that it waits for approvals or for a sign-in."),
  error_code: z
    .enum(runErrorCodes)
    .nullable()
    .describe("Code of the failure, for example `limit_tokens`. Null for a run that did not fail."),
  error_message: z
    .string()
    .nullable()
    .describe("Cause and cure of a failed run. Null for a run that did not fail."),
  output: z
    .string()
    .nullable()
    .describe(
      "Output of the run, kept for an hour. Null in a list if it exceeds 64 KiB; get the run to read it. A run that failed at a limit has the last text of the model.",
    ),
  approval: Approval.describe("First of `approvals`. Null if the run waits for no approval."),
  approvals: Approvals.describe(
    "Approvals that the run waits for, in the order of the calls. Each is decided on its own, in any order.",
  ),
  waiting_for_sign_in: z
    .object({ expires_at: timestamp.describe("Time at which the run continues without the sign-in.") })
    .nullable()
    .describe(
      "Deadline while the run is `pending_approval` because its end user has to sign in; `sign_in` has the links. The run continues after the sign-in, or without it at the deadline. Null if it waits for no sign-in.",
    ),
};

const signIn = {
  sign_in: z
    .array(
      z.object({
        toolset_id: z.string().describe("Id of the toolset to sign in to: `tst_…`."),
        end_user_id: z.string().nullable().describe("End user of the run, who signs in."),
        authorize_url: z.string().describe("Link that this person opens to sign in. It works once."),
        expires_at: timestamp.describe("Time when the link expires."),
      }),
    )
    .describe(
      "Sign-in links for toolsets that the run can use only after a person signs in. Expired links are left out. Empty in a list.",
    ),
};

const finish = {
  finish_reason: z
    .enum(finishReasons)
    .nullable()
    .describe(
      "Reason why the model ended its last response, for example `length`. Null until the run is over.",
    ),
  output_truncated: z
    .boolean()
    .describe(
      "True if a limit cut off the output: `max_output_tokens` of the model, or in a failed run its `max_tokens` or `max_steps`. Then `output` is the text that the model had written.",
    ),
};

export const InvokeResponse = z
  .object({
    ...outcome,
    session_created: z.boolean().describe("True if the invoke created the session."),
    ...finish,
    ...signIn,
  })
  .meta({ id: "AgentInvokeResponse" });
export type InvokeResponse = z.output<typeof InvokeResponse>;

export const Run = z
  .object({
    ...outcome,
    agent: z.string().describe("Name of the agent."),
    version: z.int().describe("Number of the version that the run uses."),
    end_user_id: endUserOfRun,
    trigger: z
      .object({
        type: z.enum(triggerTypes).describe("Kind of trigger; `api` stands for an invoke."),
        id: z
          .string()
          .nullable()
          .describe("Id of the schedule (`sch_…`) or webhook (`agw_…`). Null for `api`."),
      })
      .describe("Origin of the run."),
    output_expires_at: timestamp
      .nullable()
      .describe(
        "Time when the output and the texts of the events are deleted: an hour after the end. Null until the run is over.",
      ),
    tools_called: z
      .array(
        z.object({
          call_id: z.string().describe("Id of the tool call: `call_…`."),
          tool: z.string().describe("Name of the tool, as the model calls it, for example `shop__refund`."),
          toolset_id: z
            .string()
            .nullable()
            .describe(
              "Id of the tool's toolset: `tst_…`. Null for a tool of the machine, the memory or the platform.",
            ),
          status: z
            .enum(["running", "completed", "failed", "denied", "expired", "unknown"])
            .describe(
              "State of the call. `unknown` means that the call was cut off and may have taken effect.",
            ),
          started_at: timestamp
            .nullable()
            .describe("Time when the call started. Null if it has not started."),
          duration_ms: z
            .int()
            .nullable()
            .describe("Duration of the call in milliseconds. Null unless the call has started and ended."),
        }),
      )
      .describe("Tool calls of the run, in the order in which the model requested them."),
    steps: z.int().describe("Number of complete steps. Each is one model call; a summary counts too."),
    tokens: z
      .object({
        input: z.int().describe("Input tokens, including cached ones."),
        output: z.int().describe("Output tokens, including reasoning."),
        cached_input: z.int().describe("Input tokens that the provider read from its cache."),
        reasoning: z.int().describe("Output tokens that the model spent on reasoning."),
        total: z.int().describe("Sum of `input` and `output`."),
      })
      .describe("Tokens of all complete steps, as reported by the provider."),
    attempts: z
      .int()
      .describe(
        "Number of times that a process began to execute the run: at its start, and after a decision, a wait for a model, a resume or a crash.",
      ),
    waiting_for_model: z
      .object({ retry_at: timestamp.describe("Time of the next call to the model.") })
      .nullable()
      .describe("Time of the next call to an overloaded model. Null if the run does not wait for one."),
    waiting_for_session: z
      .boolean()
      .describe("True for a queued run of a trigger while earlier runs of its session are not over."),
    resumes: z.int().describe("Number of times that the run was resumed after a failure."),
    created_at: timestamp.describe("Time when the run was created."),
    started_at: timestamp.nullable().describe("Time when the run first started. Null until then."),
    finished_at: timestamp.nullable().describe("Time when the run completed or failed. Null until then."),
    last_event_id: z
      .int()
      .describe("Number of the run's last event, for the header `Last-Event-ID` of its stream."),
    ...finish,
    ...signIn,
  })
  .meta({ id: "AgentRun" });
export type Run = z.output<typeof Run>;
export const RunList = z
  .object({
    items: z.array(Run).describe("Runs of this page, newest first."),
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "AgentRunList" });
export type RunList = z.output<typeof RunList>;

export const StepParams = z.strictObject({
  run_id: runParam,
  step: z.string().max(16).describe("Number of the step, from 1 on."),
});

export const StepPromptView = z
  .object({
    run_id: runId,
    step: z.int().describe("Number of the step, from 1 on."),
    model: z.string().describe("Provider's name of the model that responded, which may be a fallback."),
    system: z
      .string()
      .nullable()
      .describe("System message: the config's `system`, its pinned facts, and the facts of the memory."),
    messages: z
      .array(
        z.object({
          role: z.string().describe("Author of the message: `user`, `assistant` or `tool`."),
          content: z.unknown().describe("Parts, in the format sent to models."),
        }),
      )
      .describe("Messages that the model got, oldest first, without the system message."),
    tools: z
      .array(
        z.object({
          name: z.string().describe("Name of the tool, as the model calls it."),
          description: z.string().describe("Description of the tool for the model."),
          parameters: z.unknown().describe("JSON Schema of the arguments."),
        }),
      )
      .describe("Tools that the model could call."),
  })
  .meta({ id: "AgentStepPrompt" });
export type StepPromptView = z.output<typeof StepPromptView>;

export const RunQuery = z.strictObject({
  agent: z.string().max(64).optional().describe("Name or id (`agt_…`) of the agent. Default: all agents."),
  session_id: z.string().max(64).optional().describe("Id of the session (`ses_…`). Default: all sessions."),
  end_user_id: EndUserId.optional().describe("End user of the runs. Default: all."),
  status: z
    .enum(runStatuses)
    .optional()
    .describe("State of the runs, for example `failed`. Default: all states."),
  trigger: z
    .enum(triggerTypes)
    .optional()
    .describe("Origin of the runs: `api` for invokes, `schedule` or `webhook`. Default: all."),
  created_after: timestamp.optional().describe("Runs created at this time or later."),
  created_before: timestamp.optional().describe("Runs created before this time."),
  ...pageQuery,
});
export type RunQuery = z.output<typeof RunQuery>;

export const StreamQuery = z.strictObject({
  format: z
    .enum(["events", "ui"])
    .default("events")
    .describe(
      "Format of the stream: `events`, or `ui` for the AI SDK's UI message stream, version 1. Default `events`.",
    ),
});

export const InvokeQuery = z.strictObject({
  format: StreamQuery.shape.format.describe(
    "Format of the response with `stream: true`: `events`, or `ui` for the AI SDK's UI message stream, version 1. Default `events`.",
  ),
});

export const RunEvent = z
  .looseObject({
    type: z
      .string()
      .describe(
        "Type of the event, for example `message.delta` or `run.completed`. The further fields depend on it.",
      ),
    seq: z.int().describe("Number of the event in its run, from 1 on without gaps."),
    run_id: runId,
    session_id: sessionId,
    at: timestamp.describe("Time of the event."),
  })
  .meta({ id: "AgentRunEvent" });
export type RunEvent = z.output<typeof RunEvent>;

/** Open approvals and sign-ins that a run waits for. */
export interface Waiting {
  approvals: readonly PendingApproval[];
  signIns: readonly SignInWait[];
}

/** Converts a row to the JSON of every response. Expired texts are omitted even before the sweep erases them. */
export function toRun(
  row: RunView,
  beside: { calls: readonly StartedCall[]; waiting: Waiting; now: Date },
): Run {
  const { calls, waiting, now } = beside;
  const approvals = waiting.approvals.map(toApproval);
  const [firstSignIn] = waiting.signIns;
  return {
    run_id: row.id,
    session_id: row.session_id,
    status: row.status,
    error_code: row.error_code,
    error_message: row.error_message,
    output: isExpired(row, now) ? null : row.output,
    output_expires_at: row.output_expires_at?.toISOString() ?? null,
    approval: approvals[0] ?? null,
    approvals,
    waiting_for_sign_in: firstSignIn ? { expires_at: firstSignIn.expires_at.toISOString() } : null,
    agent: row.agent,
    version: row.version,
    end_user_id: row.end_user_id,
    trigger: { type: row.trigger_type, id: row.trigger_id },
    tools_called: calls.map((call) => toCalled(call, row.status)),
    steps: row.steps,
    tokens: tokensOf(row),
    attempts: row.attempts,
    waiting_for_model:
      row.status === "queued" && row.retry_at ? { retry_at: row.retry_at.toISOString() } : null,
    waiting_for_session: row.status === "queued" && row.waits_turn,
    resumes: row.resumes,
    created_at: row.created_at.toISOString(),
    started_at: row.started_at?.toISOString() ?? null,
    finished_at: row.finished_at?.toISOString() ?? null,
    last_event_id: row.last_event_id,
    finish_reason: row.finish_reason,
    // A failed run has an output only if a limit cut the output off.
    output_truncated: row.finish_reason === "length" || (row.status === "failed" && row.output !== null),
    sign_in: (row.sign_ins ?? []).flatMap((asked) => toSignIn(asked, now)),
  };
}

/** Converts a sign-in link, and omits an expired link. */
function toSignIn(asked: SignInLink, now: Date): Run["sign_in"] {
  const { toolset_id, end_user_id, authorize_url, expires_in } = asked;
  const expiresAt = new Date(Date.parse(asked.at) + expires_in * 1000);
  if (expiresAt <= now) return [];
  return [{ toolset_id, end_user_id, authorize_url, expires_at: expiresAt.toISOString() }];
}

export function toInvokeResponse(row: RunView, beside: { waiting: Waiting; now: Date }): InvokeResponse {
  const run = toRun(row, { calls: [], ...beside });
  return {
    run_id: run.run_id,
    session_id: run.session_id,
    session_created: row.session_created,
    status: run.status,
    error_code: run.error_code,
    error_message: run.error_message,
    output: run.output,
    approval: run.approval,
    approvals: run.approvals,
    waiting_for_sign_in: run.waiting_for_sign_in,
    finish_reason: run.finish_reason,
    output_truncated: run.output_truncated,
    sign_in: run.sign_in,
  };
}

function toCalled(call: StartedCall, runStatus: Run["status"]): Run["tools_called"][number] {
  const { started_at, finished_at, status } = call;
  const isOpen = status === "requested" || status === "running";
  return {
    call_id: call.id,
    tool: call.tool,
    toolset_id: call.toolset_id,
    status: isOpen ? (runStatus === "running" ? "running" : "unknown") : status,
    started_at: started_at?.toISOString() ?? null,
    duration_ms: started_at && finished_at ? finished_at.getTime() - started_at.getTime() : null,
  };
}

export function toEvent(
  run: Pick<RunView, "session_id" | "expired" | "output_expires_at">,
  row: EventRow,
  now: Date,
): RunEvent {
  const data = isExpired(run, now) && textEvents.includes(row.type) ? withoutWords(row.data) : row.data;
  return {
    type: row.type,
    seq: row.seq,
    run_id: row.run_id,
    session_id: run.session_id,
    at: row.at.toISOString(),
    ...data,
  };
}

function withoutWords(data: Record<string, unknown>): Record<string, unknown> {
  const rest = Object.entries(data).filter(([name]) => !textFields.includes(name));
  return { ...Object.fromEntries(rest), expired: true };
}

export function tokensOf(
  row: Pick<RunView, "input_tokens" | "output_tokens" | "cached_input_tokens" | "reasoning_tokens">,
): Run["tokens"] {
  return {
    input: row.input_tokens,
    output: row.output_tokens,
    cached_input: row.cached_input_tokens,
    reasoning: row.reasoning_tokens,
    total: row.input_tokens + row.output_tokens,
  };
}

export function isExpired(row: Pick<RunView, "expired" | "output_expires_at">, now: Date): boolean {
  return row.expired || (row.output_expires_at !== null && row.output_expires_at <= now);
}
