/** Columns of the tables in the database, which migrations/0033_memory.sql defines. */

export interface AgentMemoriesTable {
  agent_id: string;
  end_user_id: string;
  key: string;
  value: string;
  run_id: string;
  created_at: Date;
  updated_at: Date;
}

export interface AgentMemoryTables {
  agent_memories: AgentMemoriesTable;
}
