/** What is kept of a tool that an MCP server lists. */

export interface CachedTool {
  /** As the server calls it. */
  name: string;
  description: string;
  /** JSON Schema of an object that can be used. */
  inputSchema: Record<string, unknown>;
  /** The server says that it only reads, or that twice is as good as once. */
  isRepeatable: boolean;
  /** True for Kontor's own tool that reads the server's resources. */
  readsResources?: true;
}
