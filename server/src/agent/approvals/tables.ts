/** Columns as they are stored; migrations/0029_approvals.sql and 0088_several_approvals.sql describe them. */
import type { ColumnType } from "kysely";
import type { ApprovalStatus } from "./states.ts";

/** Who decided, as the audit log names them. */
export interface Decider {
  kind: string;
  id: string;
  label: string;
  /** Text for the model; deleted with the run's other text an hour after its end. */
  reason?: string;
}

export interface AgentApprovalsTable {
  id: string;
  workspace_id: string;
  run_id: string;
  call_id: string;
  tool: string;
  /** Parsed when read, written as JSON text. */
  arguments: ColumnType<Record<string, unknown> | null, string, string>;
  status: ApprovalStatus;
  on_expire: "deny" | "fail";
  created_at: Date;
  expires_at: Date;
  decided_at: Date | null;
  /** Parsed when read, written as JSON text. */
  decided_by: ColumnType<Decider | null, string | null, string | null>;
  /** Parsed when read, written as JSON text. */
  parameters: ColumnType<Record<string, unknown> | null, string | null, null>;
  /** Parsed when read, written as JSON text. */
  approved_arguments: ColumnType<Record<string, unknown> | null, null, string | null>;
}

export interface AgentApprovalTables {
  agent_approvals: AgentApprovalsTable;
}
