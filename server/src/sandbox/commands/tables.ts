/** Columns as they are stored; migrations/0007_commands.sql and 0069 explain them. */
export interface SandboxCommandsTable {
  sandbox_id: string;
  id: string;
  command: string;
  tag: string | null;
  pid: number;
  status: "running" | "exited" | "killed";
  exit_code: number | null;
  killed_by: "out_of_memory" | null;
  started_at: Date;
  ended_at: Date | null;
  output_bytes: number;
}

export interface CommandTables {
  sandbox_commands: SandboxCommandsTable;
}
