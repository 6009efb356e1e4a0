import type { ColumnType, Generated } from "kysely";

export interface HookDelivery {
  at: string;
  event: string | null;
  status: number;
  detail: string;
}

/** Columns of the table; migrations/0011_platform.sql describes them. */
export interface ProjectsTable {
  id: Generated<string>;
  workspace_id: string;
  name: string;
  repo_url: string | null;
  branch: string;
  root_directory: string;
  framework: string | null;
  install_command: string | null;
  build_command: string | null;
  start_command: string | null;
  output_directory: string | null;
  port: number | null;
  health_check_path: string;
  auto_deploy: boolean;
  isolation: "native" | "gvisor";
  region: string;
  env_sealed: Buffer | null;
  git_token_sealed: Buffer | null;
  registry_sealed: Generated<Buffer | null>;
  deploy_key_public: string | null;
  deploy_key_sealed: Buffer | null;
  hook_id: string;
  hook_secret_sealed: Buffer;
  hook_provider: string | null;
  hook_last_delivery: ColumnType<HookDelivery | null, string | null | undefined, string | null>;
  known_hosts: string | null;
  custom_domain: string | null;
  domain_status: "pending" | "verified" | "failed" | null;
  domain_checked_at: Date | null;
  domain_error: string | null;
  domain_misses: Generated<number>;
  group_id: string | null;
  created_at: Generated<Date>;
  updated_at: Generated<Date>;
  deleted_at: Date | null;
}

export interface ProjectTables {
  projects: ProjectsTable;
}
