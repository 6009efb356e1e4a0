import type { ColumnType, Generated } from "kysely";
import type { Progress } from "../progress.ts";

export type DeploymentStatus =
  | "queued"
  | "building"
  | "deploying"
  | "live"
  | "failed"
  | "cancelled"
  | "superseded";

export interface StepRecord {
  name: "pull" | "clone" | "detect" | "build" | "scan" | "release" | "health" | "route";
  status: "pending" | "running" | "succeeded" | "failed" | "skipped";
  started_at: string | null;
  finished_at: string | null;
  error: string | null;
}

/** Command, port and health check for an image, from its recipe or the project's settings. */
export interface RunRecord {
  argv: string[];
  port: number;
  health_check_path: string;
}

/** Actor whose request created the deployment. */
export interface TriggerActor {
  kind: string;
  id: string;
  label: string;
}

/** Progress of a deployment, until the deployment ends. */
export type DeploymentProgress = Progress<"queued" | StepRecord["name"]>;

/** Columns of the table; migrations 0011, 0018, 0073, 0084 and 0094 describe them. */
export interface DeploymentsTable {
  id: Generated<string>;
  project_id: string;
  environment_id: string;
  number: number;
  status: DeploymentStatus;
  trigger_kind: "api" | "push" | "rollback" | "restart" | "console" | "agent";
  trigger_actor: ColumnType<TriggerActor, string, string>;
  /** User behind the actor; 0086_deployment_users.sql describes the column. */
  trigger_user_id: ColumnType<string | null, string | null | undefined, never>;
  wanted_sha: string | null;
  wanted_tag: string | null;
  commit_sha: string | null;
  commit_message: string | null;
  commit_author: string | null;
  /** Image of a registry, deployed in place of a commit; 0094_deployments_of_images.sql describes the columns. */
  image_reference: Generated<string | null>;
  image_digest: Generated<string | null>;
  image_tag: string | null;
  image_id: string | null;
  run: ColumnType<RunRecord | null, string | null | undefined, string | null>;
  env_sealed: Buffer | null;
  steps: ColumnType<StepRecord[], string, string>;
  progress: ColumnType<DeploymentProgress | null, string | null | undefined, string | null>;
  error: string | null;
  rolled_back_from: string | null;
  allow_rebuild: Generated<boolean>;
  restore_env: Generated<boolean>;
  rebuild: Generated<boolean>;
  image_reused: Generated<boolean>;
  cancel_asked: Generated<boolean>;
  attempts: Generated<number>;
  host_id: string | null;
  log_bytes: Generated<number>;
  log_truncated: Generated<boolean>;
  created_at: Generated<Date>;
  started_at: Date | null;
  finished_at: Date | null;
}

export interface DeploymentLogsTable {
  deployment_id: string;
  seq: Generated<number>;
  step: string;
  at: Date;
  text: string;
}

export interface DeploymentTables {
  deployments: DeploymentsTable;
  deployment_logs: DeploymentLogsTable;
}
