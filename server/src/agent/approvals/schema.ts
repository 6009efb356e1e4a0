/** The wire of approvals. */
import { z } from "zod";
import type { Decision } from "./states.ts";
import type { PendingRow, WaitingRow } from "./store.ts";

const timestamp = z.iso.datetime();

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
  })
  .refine(({ decision, reason }) => decision === "deny" || reason === undefined, {
    error: "belongs to `deny`; leave it out of an approval",
    path: ["reason"],
  })
  .meta({ id: "AgentApprovalDecision" });

/** As a run shows what it waits for. */
export const Approval = z
  .object({
    request_id: z.string(),
    tool: z.string(),
    arguments: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe("Null in a list where they take more than 16 KiB; the run has them."),
    expires_at: timestamp,
  })
  .nullable();
export type Approval = z.output<typeof Approval>;

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

export function toApproval(row: PendingRow | undefined): Approval {
  if (!row) return null;
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
