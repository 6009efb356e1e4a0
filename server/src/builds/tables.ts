import type { ColumnType, Generated } from "kysely";

/** Columns as they are stored; see migrations/0009_templates.sql for what they mean. */
export interface BuildsTable {
  id: string;
  owner_kind: "template";
  host_id: string;
  base: string;
  steps: ColumnType<string[], string, never>;
  network: "restricted" | "open";
  status: "queued" | "running" | "succeeded" | "failed";
  attempts: Generated<number>;
  step: number | null;
  error: string | null;
  log_bytes: Generated<number>;
  log_truncated: Generated<boolean>;
  created_at: Generated<Date>;
  started_at: Date | null;
  ended_at: Date | null;
}

export interface BuildLogsTable {
  build_id: string;
  seq: Generated<number>;
  step: number;
  at: Date;
  text: string;
}

export interface BuildTables {
  builds: BuildsTable;
  build_logs: BuildLogsTable;
}
