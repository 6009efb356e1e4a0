/** The wire of approvals. */
import { z } from "zod";
import type { Decision } from "./states.ts";
import type { PendingRow, WaitingRow } from "./store.ts";

const timestamp = z.iso.datetime();

const argumentsMaxKiB = 256;

export const ApprovalParams = z.strictObject({
  run_id: z.string().max(64),
  request_id: z.string().max(64),
});

export const Decide = z
  .strictObject({
    decision: z.enum(["approve", "deny"] satisfies Decision[]),
    reason: z
      .string()
      .min(1)
      .max(2_000)
      .optional()
      .describe("Reason of the denial. The model reads it with the denial."),
    arguments: z
      .record(z.string(), z.unknown())
      .refine((value) => Buffer.byteLength(JSON.stringify(value)) <= argumentsMaxKiB * 1024, {
        error: `must be at most ${argumentsMaxKiB} KiB of JSON; shorten them`,
      })
      .optional()
      .describe(
        'Arguments to approve in place of the requested ones, for example `{"amount": 50}`. They replace all of them and must fit the tool\'s schema. The model reads that a person changed them. Default: the requested arguments.',
      ),
    wait_s: z
      .number()
      .min(0)
      .max(300)
      .default(0)
      .describe("Seconds to wait until the run ends or needs a person again, for example 30. Default 0."),
  })
  .refine(({ decision, reason }) => decision === "deny" || reason === undefined, {
    error: "belongs to `deny`; leave it out of an approval",
    path: ["reason"],
  })
  .refine(({ decision, arguments: given }) => decision === "approve" || given === undefined, {
    error: "belong to `approve`; leave them out of a denial",
    path: ["arguments"],
  })
  .meta({ id: "AgentApprovalDecision" });
export type Decide = z.output<typeof Decide>;

/** Pending approval, as a run shows it. */
const PendingApproval = z.object({
  request_id: z.string(),
  tool: z.string(),
  arguments: z
    .record(z.string(), z.unknown())
    .nullable()
    .describe("Null in a list if the run's pending arguments exceed 16 KiB; reading the run returns them."),
  expires_at: timestamp,
});
export const Approval = PendingApproval.nullable();
export const Approvals = z.array(PendingApproval);

export const WaitingApproval = z
  .object({
    request_id: z.string(),
    run_id: z.string(),
    session_id: z.string(),
    end_user_id: z.string().nullable(),
    agent: z.string(),
    call_id: z.string(),
    tool: z.string(),
    arguments: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe("Null where they take more than 16 KiB; the run has them."),
    status: z.literal("pending"),
    created_at: timestamp,
    expires_at: timestamp,
  })
  .meta({ id: "AgentApproval" });
export type WaitingApproval = z.output<typeof WaitingApproval>;
export const ApprovalList = z
  .object({ items: z.array(WaitingApproval), total: z.int() })
  .meta({ id: "AgentApprovalList" });

export function toApproval(row: PendingRow): z.output<typeof PendingApproval> {
  const { id, tool, expires_at } = row;
  return { request_id: id, tool, arguments: row.arguments, expires_at: expires_at.toISOString() };
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
