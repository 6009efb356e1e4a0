/** The wire of runs. */
import { z } from "zod";
import { pageQuery } from "../cursor.ts";
import { EndUserId } from "../end-users/id.ts";
import { HistoryMessage, Input } from "./input.ts";
import { Approval, Approvals, toApproval } from "../approvals/schema.ts";
import { finishReasons, runErrorCodes, runStatuses } from "./states.ts";
import type { Called } from "../calls/calls.ts";
import type { PendingApproval } from "../approvals/approvals.ts";
import type { SignInWait } from "../connections/waits/waits.ts";
import type { EventRow, RunView, SignInAsked } from "./store.ts";
import { speaking, words } from "./words.ts";

const timestamp = z.iso.datetime();

const triggerTypes = ["api", "schedule", "webhook"] as const;

export const RunParams = z.strictObject({ run_id: z.string().max(64) });

export const Invoke = z
  .strictObject({
    input: Input.describe("A text, or parts: text, images, files."),
    session_id: z.string().max(64).optional().describe("A new session where absent."),
    end_user_id: EndUserId.optional().describe("Whom the agent speaks with; fixed for a session."),
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
    upgrade: z.boolean().default(false).describe("Pins the session to `qualifier`'s version anew."),
    messages: z.array(HistoryMessage).max(500).optional().describe("What was said before a new session."),
    wait_s: z.number().min(0).max(300).default(30),
    stream: z.boolean().default(false).describe("Answers the run's events in place of its outcome."),
  })
  .meta({ id: "AgentInvoke" });
export type Invoke = z.output<typeof Invoke>;

const outcome = {
  run_id: z.string(),
  session_id: z.string(),
  status: z.enum(runStatuses),
  error_code: z.enum(runErrorCodes).nullable(),
  error_message: z
    .string()
    .nullable()
    .describe("Cause and cure of a failed run. Null for a run that did not fail."),
  output: z
    .string()
    .nullable()
    .describe(
      "Output of the run, kept for an hour. Null in a list if it exceeds 64 KiB; reading the run returns it. A run that failed at a limit has the last text of the model.",
    ),
  approval: Approval.describe("First of `approvals`. Null if the run waits for no approval."),
  approvals: Approvals.describe(
    "Approvals that the run waits for, in the order of the calls. Each is decided on its own, in any order.",
  ),
  waiting_for_sign_in: z
    .object({ expires_at: timestamp })
    .nullable()
    .describe(
      "Deadline while the run is `pending_approval` because its end user has to sign in; `sign_in` has the links. The run continues after the sign-in, or without it at the deadline. Null if it waits for no sign-in.",
    ),
};

const signIn = {
  sign_in: z
    .array(
      z.object({
        toolset_id: z.string(),
        end_user_id: z.string().nullable(),
        authorize_url: z.string().describe("Link that this person opens to sign in. It works once."),
        expires_at: timestamp,
      }),
    )
    .describe(
      "Links for toolsets that the run could not use before a person signs in. Without expired links, and empty in a list.",
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
  .object({ ...outcome, session_created: z.boolean(), ...finish, ...signIn })
  .meta({ id: "AgentInvokeResponse" });
export type InvokeResponse = z.output<typeof InvokeResponse>;

export const Run = z
  .object({
    ...outcome,
    agent: z.string(),
    version: z.int(),
    end_user_id: z.string().nullable(),
    trigger: z.object({ type: z.enum(triggerTypes), id: z.string().nullable() }),
    output_expires_at: timestamp.nullable(),
    tools_called: z.array(
      z.object({
        call_id: z.string(),
        tool: z.string(),
        toolset_id: z.string().nullable(),
        status: z
          .enum(["running", "completed", "failed", "denied", "expired", "unknown"])
          .describe("`unknown` if the call was cut off, and whether it took effect is not known."),
        started_at: timestamp.nullable(),
        duration_ms: z.int().nullable(),
      }),
    ),
    steps: z.int(),
    tokens: z.object({
      input: z.int(),
      output: z.int(),
      cached_input: z.int(),
      reasoning: z.int(),
      total: z.int(),
    }),
    attempts: z
      .int()
      .describe(
        "Number of times that a process took the run: first, then after a decision, a wait for a model, a resume or a crash.",
      ),
    waiting_for_model: z
      .object({ retry_at: timestamp })
      .nullable()
      .describe("Time of the next call to an overloaded model. Null if the run does not wait for one."),
    waiting_for_session: z
      .boolean()
      .describe("True for a queued run of a trigger while earlier runs of its session are not over."),
    resumes: z.int().describe("Number of times that the run was resumed after a failure."),
    created_at: timestamp,
    started_at: timestamp.nullable(),
    finished_at: timestamp.nullable(),
    last_event_id: z.int(),
    ...finish,
    ...signIn,
  })
  .meta({ id: "AgentRun" });
export type Run = z.output<typeof Run>;
export const RunList = z
  .object({
    items: z.array(Run),
    next_cursor: z.string().nullable().describe("Cursor of the next page. Null on the last page."),
  })
  .meta({ id: "AgentRunList" });
export type RunList = z.output<typeof RunList>;

export const StepParams = z.strictObject({
  run_id: z.string().max(64),
  step: z.string().max(16).describe("Number of the step, from 1 on."),
});

export const StepPromptView = z
  .object({
    run_id: z.string(),
    step: z.int(),
    model: z.string(),
    system: z
      .string()
      .nullable()
      .describe("System message: the config's `system`, its pinned facts, and the facts of the memory."),
    messages: z.array(
      z.object({ role: z.string(), content: z.unknown().describe("Parts, in the format sent to models.") }),
    ),
    tools: z.array(
      z.object({
        name: z.string(),
        description: z.string(),
        parameters: z.unknown().describe("JSON Schema of the arguments."),
      }),
    ),
  })
  .meta({ id: "AgentStepPrompt" });
export type StepPromptView = z.output<typeof StepPromptView>;

export const RunQuery = z.strictObject({
  agent: z.string().max(64).optional(),
  session_id: z.string().max(64).optional(),
  end_user_id: EndUserId.optional(),
  status: z.enum(runStatuses).optional(),
  trigger: z.enum(triggerTypes).optional().describe("Origin of the runs."),
  created_after: timestamp.optional().describe("Runs created at this time or later."),
  created_before: timestamp.optional().describe("Runs created before this time."),
  ...pageQuery,
});
export type RunQuery = z.output<typeof RunQuery>;

export const StreamQuery = z.strictObject({
  format: z
    .enum(["events", "ui"])
    .default("events")
    .describe("`ui`: the same log as the AI SDK's UI message stream, version 1."),
});

export const InvokeQuery = z.strictObject({
  format: StreamQuery.shape.format.describe("Of the answer of an invoke with `stream: true`."),
});

export const RunEvent = z
  .looseObject({
    type: z.string(),
    seq: z.int(),
    run_id: z.string(),
    session_id: z.string(),
    at: timestamp,
  })
  .meta({ id: "AgentRunEvent" });
export type RunEvent = z.output<typeof RunEvent>;

/** People that a run waits for. */
export interface Waiting {
  approvals: readonly PendingApproval[];
  signIns: readonly SignInWait[];
}

/** The only ways from a row to JSON. What is past its hour is gone, whether or not the sweep was there. */
export function toRun(row: RunView, beside: { calls: readonly Called[]; waiting: Waiting; now: Date }): Run {
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
    // A failed run has an output only if a limit cut it off.
    output_truncated: row.finish_reason === "length" || (row.status === "failed" && row.output !== null),
    sign_in: (row.sign_ins ?? []).flatMap((asked) => toSignIn(asked, now)),
  };
}

/** Leaves out expired links. */
function toSignIn(asked: SignInAsked, now: Date): Run["sign_in"] {
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

function toCalled(call: Called, runStatus: Run["status"]): Run["tools_called"][number] {
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
  const data = isExpired(run, now) && speaking.includes(row.type) ? withoutWords(row.data) : row.data;
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
  const rest = Object.entries(data).filter(([name]) => !words.includes(name));
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
