import type { ColumnType, Generated } from "kysely";
import type { Progress } from "../progress.ts";

/**
 * Steps of a start: building the image, creating volume and machine, starting the process, and waiting for its first
 * response.
 */
export const addonSteps = ["image", "volume", "start", "answer"] as const;
export type AddonStep = (typeof addonSteps)[number];
export type AddonProgress = Progress<AddonStep>;

/** Columns as stored; migrations/0020_addons.sql and 0084 describe them. */
export interface AddonsTable {
  id: Generated<string>;
  project_id: string;
  environment_id: string | null;
  kind: "postgres" | "redis";
  version: string;
  name: string;
  size: string;
  status: "provisioning" | "running" | "stopped" | "failed";
  error: string | null;
  progress: ColumnType<AddonProgress | null, string | null | undefined, string | null>;
  private_index: number;
  username: string;
  database: string | null;
  password_sealed: Buffer;
  public: Generated<boolean>;
  public_port: number | null;
  options: ColumnType<Record<string, unknown>, string | undefined, string>;
  is_made: Generated<boolean>;
  auto_backup: Generated<boolean>;
  next_backup_at: Date | null;
  backup_missed_at: Date | null;
  restart_count: Generated<number>;
  created_at: Generated<Date>;
  updated_at: Generated<Date>;
  deleted_at: Date | null;
}

export interface AddonTables {
  addons: AddonsTable;
}
