import type { ColumnType, Generated } from "kysely";

/** Columns as they are stored; see migrations/0019_functions.sql for what they mean. */
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
  created_at: Generated<Date>;
  finished_at: Date | null;
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
  function_instances: FunctionInstancesTable;
  function_minutes: FunctionMinutesTable;
}
