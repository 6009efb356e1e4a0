/** Wire format of approvals. */
import { z } from "zod";
import { approvalKinds, type Decision } from "./states.ts";
import type { PendingRow, WaitingRow } from "./store.ts";

const timestamp = z.iso.datetime();

const argumentsMaxKiB = 256;
const contentMaxKiB = 64;

export const ApprovalParams = z.strictObject({
  run_id: z.string().max(64).describe("Id of the run: `run_…`."),
  request_id: z.string().max(64).describe("Id of the approval: `apr_…`, from the run's `approvals`."),
});

export const Decide = z
  .strictObject({
    decision: z
      .enum(["approve", "deny", "cancel"] satisfies Decision[])
      .describe(
        "`approve` makes the call, or answers the question with `content`. `deny` refuses the call, or declines to answer. `cancel` dismisses a question; calls cannot be dismissed.",
      ),
    reason: z
      .string()
      .min(1)
      .max(2_000)
      .optional()
      .describe("Reason to deny a call. The model reads it with the denial. Not allowed for a question."),
    arguments: z
      .record(z.string(), z.unknown())
      .refine((value) => Buffer.byteLength(JSON.stringify(value)) <= argumentsMaxKiB * 1024, {
        error: `must be at most ${argumentsMaxKiB} KiB of JSON; shorten them`,
      })
      .optional()
      .describe(
        'Arguments to approve in place of the requested ones, for example `{"amount": 50}`. They replace all of them and must fit the tool\'s schema. The model reads that a person changed them. Default: the requested arguments.',
      ),
    content: z
      .record(z.string().max(200), z.union([z.string(), z.number(), z.boolean(), z.array(z.string())]))
      .refine((value) => Buffer.byteLength(JSON.stringify(value)) <= contentMaxKiB * 1024, {
        error: `must be at most ${contentMaxKiB} KiB of JSON; shorten it`,
      })
      .optional()
      .describe(
        'Answer to a question, with `approve`, for example `{"name": "Ada"}`. It must fit the question\'s `schema`; fields that are left out get their defaults. Default: only defaults.',
      ),
    wait_s: z
      .number()
      .min(0)
      .max(300)
      .default(0)
      .describe("Seconds to wait until the run ends or needs a person again, for example 30. Default 0."),
  })
  .refine(({ decision, reason }) => decision === "deny" || reason === undefined, {
    error: "is for `deny` only; remove reason, or deny",
    path: ["reason"],
  })
  .refine(({ decision, arguments: given }) => decision === "approve" || given === undefined, {
    error: "are for `approve` only; remove arguments, or approve",
    path: ["arguments"],
  })
  .refine(({ decision, content }) => decision === "approve" || content === undefined, {
    error: "is for `approve` only; remove content, or approve",
    path: ["content"],
  })
  .meta({ id: "AgentApprovalDecision" });
export type Decide = z.output<typeof Decide>;

const requestId = z.string().describe("Id of the approval: `apr_…`.");
const toolName = z.string().describe("Name of the tool, as the model calls it, for example `shop__refund`.");
const kind = z
  .enum(approvalKinds)
  .describe(
    "`call`: a person decides if the call is made. `elicitation`: the tool's server asks a question during the call.",
  );
const question = z
  .object({
    message: z.string().describe("Text of the question, written by the tool's server."),
    schema: z
      .record(z.string(), z.unknown())
      .describe("JSON Schema of the answer's `content`. All fields are texts, numbers, booleans or choices."),
  })
  .nullable()
  .describe(
    "Question of an `elicitation`. Null for a `call`, and in a list of runs if the run's pending arguments and questions exceed 16 KiB.",
  );
const expiresAt = timestamp.describe("Time when the approval expires, if it is not decided before.");

/** Pending approval, as part of a run. */
const PendingApproval = z.object({
  request_id: requestId,
  kind,
  tool: toolName,
  arguments: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe(
      "Arguments of the call. Null in a list if the run's pending arguments and questions exceed 16 KiB; get the run to read them.",
    ),
  question,
  expires_at: expiresAt,
});
export const Approval = PendingApproval.nullable();
export const Approvals = z.array(PendingApproval);

export const WaitingApproval = z
  .object({
    request_id: requestId,
    run_id: z.string().describe("Id of the run that waits for the approval: `run_…`."),
    session_id: z.string().describe("Id of the run's session: `ses_…`."),
    end_user_id: z.string().nullable().describe("End user of the run. Null if it has none."),
    agent: z.string().describe("Name of the agent."),
    call_id: z.string().describe("Id of the tool call: `call_…`."),
    kind,
    tool: toolName,
    arguments: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe("Arguments of the call. Null if they exceed 16 KiB; get the run to read them."),
    question,
    status: z.literal("pending").describe("Always `pending`: decided approvals are not listed."),
    created_at: timestamp.describe("Time when the run requested the approval."),
    expires_at: expiresAt,
  })
  .meta({ id: "AgentApproval" });
export type WaitingApproval = z.output<typeof WaitingApproval>;
export const ApprovalList = z
  .object({
    items: z.array(WaitingApproval).describe("Pending approvals, newest first, at most 100."),
    total: z.int().describe("Number of all pending approvals, including those not listed."),
  })
  .meta({ id: "AgentApprovalList" });

export function toApproval(row: PendingRow): z.output<typeof PendingApproval> {
  const { id, kind, tool, question, expires_at } = row;
  return {
    request_id: id,
    kind,
    tool,
    arguments: row.arguments,
    question,
    expires_at: expires_at.toISOString(),
  };
}

export function toWaiting({ id, created_at, expires_at, ...row }: WaitingRow): WaitingApproval {
  return {
    request_id: id,
    ...row,
    status: "pending",
    created_at: created_at.toISOString(),
    expires_at: expires_at.toISOString(),
  };
}
