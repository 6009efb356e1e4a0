import type { ColumnType, Generated } from "kysely";

/**
 * Columns of the table; migrations/0009_templates.sql, 0062_builds_of_workspaces.sql and 0097_templates_of_images.sql
 * describe them.
 */
export interface BuildsTable {
  id: string;
  workspace_id: string | null;
  owner_kind: "template";
  host_id: string;
  base: string;
  steps: ColumnType<string[], string, never>;
  network: "restricted" | "open";
  dockerfile: ColumnType<string | null, string | null | undefined, never>;
  progress: ColumnType<BuildStep | null, undefined, string | null>;
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

/** Defaults of processes in an image's machine, from its WORKDIR and USER. */
export interface ProcessDefaults {
  /** Working directory. Null for the machine's own default. */
  cwd: string | null;
  /** User name or number, with or without `:group`. Null for root. */
  user: string | null;
}

/** Progress of a build of a Dockerfile. */
export interface BuildStep {
  /** Fraction of the build, from 0 to 1. */
  fraction: number;
  /** Current step, as text for people. */
  step: string;
}

export interface BuildLogsTable {
  build_id: string;
  seq: Generated<number>;
  step: number;
  at: Date;
  text: string;
}

/** Columns of the table; migrations/0013_app_images.sql describes them. */
export interface AppImagesTable {
  id: string;
  project_id: string;
  host_id: string;
  number: number;
  digest: string;
  size_bytes: number;
  run: ColumnType<AppImageRun, string, never>;
  deployment_id: string | null;
  build_key: Generated<Buffer | null>;
  scan: ColumnType<unknown, string | null | undefined, string | null>;
  created_at: Generated<Date>;
  pruned_at: Date | null;
}

/** Run parameters of an image, from the image's own configuration. */
interface AppImageRun {
  argv: string[];
  port: number | null;
  health_check_path: string | null;
  /** User name or number, with or without a group. Null for root. */
  user: string | null;
  cwd: string;
  env: Record<string, string>;
}

export interface BuildTables {
  app_images: AppImagesTable;
  builds: BuildsTable;
  build_logs: BuildLogsTable;
}
