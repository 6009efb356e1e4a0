import type { Generated } from "kysely";

/** Columns as stored; migrations/0011_platform.sql describes them. */
export interface GroupsTable {
  id: Generated<string>;
  workspace_id: string;
  name: string;
  description: string | null;
  color: string | null;
  created_at: Generated<Date>;
}

export interface GroupTables {
  project_groups: GroupsTable;
}
