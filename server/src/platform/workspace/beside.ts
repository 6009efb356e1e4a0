/** What a workspace has beside projects: rooms this one may not know. Main hands it in. */
import type { Db } from "#schema.ts";

/** The first of them, and how many there are. */
export interface Page<T> {
  items: T[];
  total: number;
}

export type Lister<T> = (db: Db, workspaceId: string, limit: number) => Promise<Page<T>>;

export interface SandboxSummary {
  id: string;
  status: "running" | "paused";
  template: string;
  size: string;
  region: string;
  created_at: Date;
  expires_at: Date;
}

/** An agent, as who acts for it. */
export interface WorkerSummary {
  id: string;
  name: string;
  worker_id: string;
  status: string;
  last_run: { run_id: string; status: string; created_at: Date; finished_at: Date | null } | null;
}

export interface ApprovalSummary {
  request_id: string;
  run_id: string;
  agent: string;
  tool: string;
  created_at: Date;
  expires_at: Date;
}

export interface Beside {
  sandboxes: Lister<SandboxSummary>;
  workers: Lister<WorkerSummary>;
  pendingApprovals: Lister<ApprovalSummary>;
}
