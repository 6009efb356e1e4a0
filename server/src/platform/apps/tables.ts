import type { ColumnType, Generated } from "kysely";

/** Parameters that a start of the app needs. */
export interface RunSpec {
  image: string;
  argv: string[];
  cwd: string;
  user: string | null;
  port: number;
  healthCheckPath: string;
  isolation: "native" | "gvisor";
  size: Extent;
  hostname: string;
  /** Id of the workspace, whose services the app reaches over the private network. */
  workspaceId: string;
}

/** CPU and memory of an app. `burstMb` is the largest memory limit in MiB. */
export interface Extent {
  cpu: number;
  memoryMb: number;
  burstMb: number;
}

/** Columns of the table; migrations/0012_apps.sql describes them. */
export interface AppInstancesTable {
  id: string;
  environment_id: string;
  deployment_id: string;
  state: "starting" | "live" | "asleep" | "draining";
  run: ColumnType<RunSpec, string, string>;
  env_sealed: Buffer;
  starts: Generated<number>;
  restart_count: Generated<number>;
  crashes_in_row: Generated<number>;
  last_exit_code: number | null;
  last_exit: string | null;
  crashed: Generated<boolean>;
  started_at: Date | null;
  created_at: Generated<Date>;
}

export interface AppTables {
  app_instances: AppInstancesTable;
}
