import type { ColumnType } from "kysely";
import type { ProcessDefaults } from "#builds/tables.ts";

/**
 * Columns as they are stored; migrations/0014_forks.sql, 0082_substituted_versions.sql and 0097_templates_of_images.sql
 * explain them.
 */
export interface SandboxSnapshotsTable {
  id: string;
  workspace_id: string;
  name: string | null;
  sandbox_id: string;
  template: string;
  template_id: string | null;
  substituted: string | null;
  process_defaults: ColumnType<ProcessDefaults | null, string | null, never>;
  start_command_id: string | null;
  size: string;
  cpu: number;
  memory_mb: number;
  region: string;
  created_at: Date;
  expires_at: Date | null;
}

export interface SnapshotTables {
  sandbox_snapshots: SandboxSnapshotsTable;
}
