/** Columns of the tables in the database. Migrations 0034 and 0092 define these columns. */
import type { Generated } from "kysely";

export interface AgentSchedulesTable {
  id: string;
  workspace_id: string;
  agent_id: string;
  name: string | null;
  schedule: string;
  timezone: string;
  message: string;
  end_user_id: string | null;
  session: string | null;
  qualifier: Generated<string>;
  anchor: Date;
  next_run_at: Date | null;
  last_run_at: Date | null;
  last_run_id: string | null;
  last_status: "skipped" | "refused" | null;
  last_error: string | null;
  consecutive_failures: Generated<number>;
  disabled_reason: string | null;
  created_at: Date;
}

export interface AgentScheduleTicksTable {
  schedule_id: string;
  tick: Date;
  status: "running" | "completed" | "failed" | "stopped" | "refused" | "skipped";
  reason: string | null;
  run_id: string | null;
  at: Date;
}

export interface AgentScheduleTables {
  agent_schedules: AgentSchedulesTable;
  agent_schedule_ticks: AgentScheduleTicksTable;
}
