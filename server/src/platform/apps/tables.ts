import type { ColumnType, Generated } from "kysely";

/** What is run, and how: enough to begin it again without asking anybody. */
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
  /** Whose it is: it reaches what else of that workspace serves by the private network. */
  workspaceId: string;
}

/** How much of a host it has. `burstMb`: what its memory may grow to while it needs it. */
export interface Extent {
  cpu: number;
  memoryMb: number;
  burstMb: number;
}

/** Columns as they are stored; see migrations/0012_apps.sql for what they mean. */
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
