/**
 * A connection to an MCP server. What the server says is hostile: each wait has a deadline, nothing of it is compiled,
 * and its requests for more (a question to a person, another model's words) find nobody here who answers them.
 */
import {
  type CallToolResult,
  type Client,
  type SSEClientTransport,
  StreamableHTTPClientTransport,
  type Tool as ListedTool,
} from "@modelcontextprotocol/client";
import { within } from "./within.ts";

export type { CallToolResult, ListedTool };

const farewellMs = 2_000;

export class McpConnection {
  readonly #client: Client;
  readonly #transport: StreamableHTTPClientTransport | SSEClientTransport;
  #isOpen = true;

  /** Of a client that is connected. */
  constructor(client: Client, transport: StreamableHTTPClientTransport | SSEClientTransport) {
    this.#client = client;
    this.#transport = transport;
    client.onclose = () => (this.#isOpen = false);
    client.onerror = (error) => {
      // Over SSE all there is is one stream, and its reader would begin it again for ever.
      if (error.name === "SseError") void this.close();
    };
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  async tools(timeoutMs: number): Promise<ListedTool[]> {
    if (!this.#client.getServerCapabilities()?.tools) return [];
    const options = { timeout: timeoutMs, cacheMode: "bypass" } as const;
    const { tools } = await within(timeoutMs, this.#client.listTools(undefined, options));
    return tools;
  }

  call(
    tool: { name: string; inputSchema: Record<string, unknown> },
    values: Record<string, unknown>,
    options: { timeoutMs: number; signal: AbortSignal },
  ): Promise<CallToolResult> {
    return this.#client.callTool(
      { name: tool.name, arguments: values },
      {
        timeout: options.timeoutMs,
        maxTotalTimeout: options.timeoutMs,
        signal: options.signal,
        // Servers of today are told some arguments in headers as well: which, the schema says.
        toolDefinition: { name: tool.name, inputSchema: tool.inputSchema as ListedTool["inputSchema"] },
      },
    );
  }

  /** Says farewell where the server keeps a session, and does not wait for long. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    if (this.#transport instanceof StreamableHTTPClientTransport)
      await within(farewellMs, this.#transport.terminateSession()).catch(() => {});
    await this.#client.close().catch(() => {});
  }
}
