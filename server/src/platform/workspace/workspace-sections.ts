/**
 * A workspace's sections that other APIs own, so the platform may not import them. `compose/apis.ts` passes the
 * sections.
 */
import type { Db } from "#schema.ts";

/** The first items of a list, and their total number. */
export interface Page<T> {
  items: T[];
  total: number;
}

type Lister<T> = (db: Db, workspaceId: string, limit: number) => Promise<Page<T>>;

interface SandboxSummary {
  id: string;
  status: "running" | "paused";
  template: string;
  size: string;
  region: string;
  created_at: Date;
  expires_at: Date;
}

/** An agent, with the identity under which it acts. */
interface WorkerSummary {
  id: string;
  name: string;
  worker_id: string;
  status: string;
  last_run: { run_id: string; status: string; created_at: Date; finished_at: Date | null } | null;
}

interface ApprovalSummary {
  request_id: string;
  run_id: string;
  agent: string;
  tool: string;
  created_at: Date;
  expires_at: Date;
}

export interface WorkspaceSections {
  sandboxes: Lister<SandboxSummary>;
  workers: Lister<WorkerSummary>;
  pendingApprovals: Lister<ApprovalSummary>;
}
