import type { Generated } from "kysely";

/** Columns as they are stored; migrations/0002_jobs.sql describes them. */
interface ProcessesTable {
  id: string;
  host_id: string | null;
  worker_pool: string | null;
  version: string;
  started_at: Generated<Date>;
  seen_at: Generated<Date>;
}

export interface JobsTables {
  processes: ProcessesTable;
}
