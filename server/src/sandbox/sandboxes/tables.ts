import type { ColumnType, Generated } from "kysely";
import type { ProcessDefaults } from "#builds/tables.ts";

/**
 * Columns as they are stored; migrations/0004_sandboxes.sql, 0014_forks.sql, 0082_substituted_versions.sql and
 * 0097_templates_of_images.sql explain them.
 */
export interface SandboxesTable {
  id: string;
  workspace_id: string;
  template: string;
  size: string;
  cpu: number;
  memory_mb: number;
  network: "off" | "restricted" | "open";
  region: string;
  status: "running" | "paused" | "terminated";
  transition: "pausing" | "resuming" | "terminating" | null;
  termination_reason: TerminationReason | null;
  on_timeout: "kill" | "pause";
  auto_resume: boolean;
  timeout_seconds: number;
  expires_at: Date;
  preview_token_sealed: Buffer | null;
  allow_domains: string[] | null;
  metadata: ColumnType<Record<string, string>, string, string>;
  cpu_seconds: Generated<number>;
  running_since: Date | null;
  running_seconds: Generated<number>;
  created_at: Generated<Date>;
  terminated_at: Date | null;
  volume_id: string | null;
  template_id: string | null;
  substituted: ColumnType<string | null, string | null | undefined>;
  process_defaults: ColumnType<ProcessDefaults | null, string | null | undefined>;
  start_command_id: string | null;
  forked_from: ColumnType<string | null, string | null | undefined>;
  snapshot_id: ColumnType<string | null, string | null | undefined>;
  reserved: Generated<boolean>;
}

export type TerminationReason =
  | "requested"
  | "timeout"
  | "out_of_memory"
  | "snapshot_expired"
  | "host_lost"
  | "start_failed";

export interface SandboxTables {
  sandboxes: SandboxesTable;
}
