import type { Generated } from "kysely";

/** Columns as they are stored; see migrations/0011_platform.sql for what they mean. */
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
