import type { Generated } from "kysely";

/** Columns of the tables; migrations/0020_addons.sql, 0026_backups.sql and 0036_restores_in_doubt.sql describe them. */
export interface BackupsTable {
  id: Generated<string>;
  addon_id: string;
  kind: "manual" | "auto" | "safety";
  status: "pending" | "running" | "completed" | "failed";
  blob_key: string | null;
  version: string;
  size_bytes: number | null;
  sha256: string | null;
  contents: string | null;
  verified_at: Date | null;
  expires_at: Date | null;
  error: string | null;
  attempts: Generated<number>;
  created_at: Generated<Date>;
  started_at: Date | null;
  finished_at: Date | null;
  deleted_at: Date | null;
}

export interface RestoresTable {
  id: Generated<string>;
  backup_id: string;
  addon_id: string;
  status: "running" | "completed" | "failed";
  error: string | null;
  safety_backup_id: string | null;
  attempts: Generated<number>;
  in_doubt_since: Date | null;
  created_at: Generated<Date>;
  finished_at: Date | null;
}

export interface BackupTables {
  backups: BackupsTable;
  restores: RestoresTable;
}
