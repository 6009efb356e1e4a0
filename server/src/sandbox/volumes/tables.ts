import type { Generated } from "kysely";

/** Columns as they are stored; migrations/0010_volumes.sql explains them. */
export interface SandboxVolumesTable {
  id: string;
  workspace_id: string;
  name: string;
  size_gb: number;
  region: string;
  host_id: string;
  is_made: Generated<boolean>;
  sandbox_id: string | null;
  moving_to: string | null;
  deleted_at: Date | null;
  created_at: Date;
}

export interface VolumeTables {
  sandbox_volumes: SandboxVolumesTable;
}
