/** Stored form of a tool that an MCP server lists. */

export interface CachedTool {
  /** Name of the tool at the MCP server. */
  name: string;
  description: string;
  /** JSON Schema of an object. The schema was checked as usable. */
  inputSchema: Record<string, unknown>;
  /** True if the server declares the tool read-only or idempotent. */
  isRepeatable: boolean;
  /** True for Kontor's own tool, which reads the server's resources. */
  readsResources?: true;
}
