import type { ColumnType, Generated } from "kysely";
import type { TriggerActor } from "../deployments/tables.ts";
import type { Progress } from "../progress.ts";

/** Columns of the table; migrations/0019_functions.sql and 0072 describe them. */
export interface FunctionsTable {
  id: Generated<string>;
  workspace_id: string;
  name: string;
  runtime: "nodejs" | "python";
  handler_code: string;
  dependencies: ColumnType<Record<string, string>, string | undefined, string>;
  auth_mode: "none" | "api_key";
  api_key_hash: Buffer | null;
  api_key_hint: string | null;
  idle_timeout_seconds: number;
  env_sealed: Buffer | null;
  memory_mb: number;
  timeout_seconds: number;
  region: string;
  pending_deploy: Generated<boolean>;
  live_version_id: string | null;
  last_deployed_at: Date | null;
  error: string | null;
  created_at: Generated<Date>;
  updated_at: Generated<Date>;
  deleted_at: Date | null;
}

export const versionSteps = ["build", "start"] as const;
export type VersionStep = (typeof versionSteps)[number];

/** Progress of a version, while it is deployed. */
export type VersionProgress = Progress<"queued" | VersionStep>;

export interface FunctionVersionsTable {
  id: string;
  function_id: string;
  number: number;
  state: "building" | "live" | "failed" | "superseded";
  runtime: "nodejs" | "python";
  handler_code: string;
  dependencies: ColumnType<Record<string, string>, string, string>;
  lock: string | null;
  image_id: string | null;
  content_hash: Buffer | null;
  host_id: string | null;
  attempts: Generated<number>;
  error: string | null;
  trigger_kind: "api" | "console" | "agent" | "rollback" | null;
  trigger_actor: ColumnType<TriggerActor | null, string | null, string | null>;
  trigger_user_id: ColumnType<string | null, string | null | undefined, never>;
  rolled_back_from: string | null;
  image_reused: Generated<boolean>;
  progress: ColumnType<VersionProgress | null, string | null, string | null>;
  log_truncated: Generated<boolean>;
  created_at: Generated<Date>;
  finished_at: Date | null;
}

export interface FunctionVersionLogsTable {
  version_id: string;
  seq: Generated<number>;
  step: string;
  at: Date;
  text: string;
}

export interface FunctionInstancesTable {
  id: string;
  function_id: string;
  version_id: string;
  state: "starting" | "running" | "frozen" | "asleep" | "ending";
  env_sealed: Buffer | null;
  created_at: Generated<Date>;
  last_used_at: Generated<Date>;
}

export interface FunctionMinutesTable {
  function_id: string;
  minute: Date;
  writer: string;
  requests: number;
  errors: number;
  latencies: Buffer;
  cold_starts: number;
  wakes: Buffer;
}

export interface FunctionTables {
  functions: FunctionsTable;
  function_versions: FunctionVersionsTable;
  function_version_logs: FunctionVersionLogsTable;
  function_instances: FunctionInstancesTable;
  function_minutes: FunctionMinutesTable;
}
