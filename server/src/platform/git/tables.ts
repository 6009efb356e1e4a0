/** Columns of the table; migrations/0015_git.sql describes them. */
interface GitHeadsTable {
  project_id: string;
  branch: string;
  sha: string;
}

interface GitDeliveriesTable {
  project_id: string;
  delivery_id: string;
  at: Date;
}

export interface GitTables {
  git_heads: GitHeadsTable;
  git_deliveries: GitDeliveriesTable;
}
