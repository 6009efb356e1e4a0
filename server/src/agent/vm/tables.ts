/** Columns of the tables in the database. Migration 0030 defines these columns. */

export interface AgentMachinesTable {
  session_id: string;
  workspace_id: string;
  sandbox_id: string;
  state: "awake" | "parking" | "parked" | "lost" | "ending";
  park_after_seconds: number;
  last_used_at: Date;
  lost_in: string | null;
}

export interface AgentMachineTables {
  agent_machines: AgentMachinesTable;
}
