/** Columns of the tables in the database. Migrations 0029, 0088 and 0099 define these columns. */
import type { ColumnType, Generated } from "kysely";
import type { ApprovalKind, ApprovalStatus } from "./states.ts";

/** Person or token that decided, as in the audit log. */
export interface Decider {
  kind: string;
  id: string;
  label: string;
  /** Reason for the model. The reason is deleted with the run's other text, an hour after the run's end. */
  reason?: string;
  /**
   * Keyed hash of an answer's content. The hash distinguishes a repetition from another answer, and is deleted with the
   * reason.
   */
  answer?: string;
}

/** Question of a tool's server, as shown to a person. */
export interface ElicitationQuestion {
  message: string;
  /** JSON Schema of the content, with flat fields only. */
  schema: Record<string, unknown>;
}

export interface AgentApprovalsTable {
  id: string;
  workspace_id: string;
  run_id: string;
  call_id: string;
  tool: string;
  /** This value is parsed when read and written as JSON text. */
  arguments: ColumnType<Record<string, unknown> | null, string, string>;
  status: ApprovalStatus;
  on_expire: "deny" | "fail";
  created_at: Date;
  expires_at: Date;
  decided_at: Date | null;
  /** This value is parsed when read and written as JSON text. */
  decided_by: ColumnType<Decider | null, string | null, string | null>;
  /** This value is parsed when read and written as JSON text. */
  parameters: ColumnType<Record<string, unknown> | null, string | null, null>;
  /** This value is parsed when read and written as JSON text. */
  approved_arguments: ColumnType<Record<string, unknown> | null, null, string | null>;
  kind: Generated<ApprovalKind>;
  /** Null unless the kind is `elicitation`. The question is parsed when read and written as JSON text. */
  question: ColumnType<ElicitationQuestion | null, string | null | undefined, null>;
  /** Content of a response that the call has not read yet. The content is parsed when read and written as JSON text. */
  content: ColumnType<Record<string, unknown> | null, null | undefined, string | null>;
}

export interface AgentApprovalTables {
  agent_approvals: AgentApprovalsTable;
}
