import type { Generated } from "kysely";

/** Columns of the table; migrations/0011_platform.sql and 0017_projects.sql describe them. */
export interface EnvironmentsTable {
  id: Generated<string>;
  project_id: string;
  name: string;
  kind: "production" | "staging" | "dev" | "preview";
  branch: string;
  host_label: string;
  size: string;
  env_sealed: Buffer | null;
  live_deployment_id: string | null;
  asleep_since: Date | null;
  created_at: Generated<Date>;
  updated_at: Generated<Date>;
  deleted_at: Date | null;
}

export interface EnvironmentTables {
  environments: EnvironmentsTable;
}
