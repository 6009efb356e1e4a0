/**
 * A connection to an MCP server. The server is hostile: each wait has a deadline, and no schema is compiled. Requests
 * of the server, such as sampling, are refused. So is a question during a call that allows none.
 */
import {
  type CallToolResult,
  type Client,
  ProtocolError,
  type ReadResourceResult,
  type Resource,
  type SSEClientTransport,
  StreamableHTTPClientTransport,
  type Tool as ListedTool,
} from "@modelcontextprotocol/client";
import type { Asker, AskingCalls } from "./asking-calls.ts";
import { withDeadline } from "./with-deadline.ts";

export type { CallToolResult, ListedTool, ReadResourceResult, Resource };

const farewellMs = 2_000;

export class McpConnection {
  readonly #client: Client;
  readonly #transport: StreamableHTTPClientTransport | SSEClientTransport;
  readonly #calls: AskingCalls;
  readonly #isWorn: () => boolean;
  #isOpen = true;

  /** Wraps a client that is already connected. */
  constructor(
    client: Client,
    transport: StreamableHTTPClientTransport | SSEClientTransport,
    calls: AskingCalls,
    isWorn: () => boolean,
  ) {
    this.#calls = calls;
    this.#client = client;
    this.#transport = transport;
    this.#isWorn = isWorn;
    client.onclose = () => (this.#isOpen = false);
    client.onerror = (error) => {
      // Over SSE the connection is one stream, and the library would reconnect the stream without end.
      if (error.name === "SseError") void this.close();
    };
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** True if the connection works, but is near its read limit and should be replaced. */
  get isWorn(): boolean {
    return this.#isWorn();
  }

  /** Checks that the server responds, and throws if it does not. An error response counts as a response. */
  async ping(timeoutMs: number): Promise<void> {
    const options = { timeout: timeoutMs };
    const isOfToday = this.#client.getProtocolEra() === "modern";
    const asked: Promise<unknown> = isOfToday ? this.#client.discover(options) : this.#client.ping(options);
    await withDeadline(timeoutMs, asked).catch((error: unknown) => {
      if (!(error instanceof ProtocolError)) throw error;
    });
  }

  async tools(timeoutMs: number): Promise<ListedTool[]> {
    if (!this.#client.getServerCapabilities()?.tools) return [];
    const options = { timeout: timeoutMs, cacheMode: "bypass" } as const;
    const { tools } = await withDeadline(timeoutMs, this.#client.listTools(undefined, options));
    return tools;
  }

  get hasResources(): boolean {
    return this.#client.getServerCapabilities()?.resources !== undefined;
  }

  /** Lists resources, up to the client's maximum number of pages. */
  async resources({ timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal }): Promise<Resource[]> {
    const options = { timeout: timeoutMs, maxTotalTimeout: timeoutMs, signal, cacheMode: "bypass" } as const;
    const { resources } = await this.#client.listResources(undefined, options);
    return resources;
  }

  readResource(
    uri: string,
    { timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal },
  ): Promise<ReadResourceResult> {
    const options = { timeout: timeoutMs, maxTotalTimeout: timeoutMs, signal, cacheMode: "bypass" } as const;
    return this.#client.readResource({ uri }, options);
  }

  call(
    tool: { name: string; inputSchema: Record<string, unknown> },
    values: Record<string, unknown>,
    options: {
      timeoutMs: number;
      signal: AbortSignal;
      headers?: Readonly<Record<string, string>>;
      /** Function that passes the server's questions during this call to a person. */
      ask?: Asker | undefined;
    },
  ): Promise<CallToolResult> {
    return this.#calls.run(options.ask, () => this.#send(tool, values, options));
  }

  #send(
    tool: { name: string; inputSchema: Record<string, unknown> },
    values: Record<string, unknown>,
    options: { timeoutMs: number; signal: AbortSignal; headers?: Readonly<Record<string, string>> },
  ): Promise<CallToolResult> {
    return this.#client.callTool(
      { name: tool.name, arguments: values },
      {
        timeout: options.timeoutMs,
        maxTotalTimeout: options.timeoutMs,
        signal: options.signal,
        ...(options.headers ? { headers: { ...options.headers } } : {}),
        // Newer servers expect some arguments in headers too. The schema names these arguments.
        toolDefinition: { name: tool.name, inputSchema: tool.inputSchema as ListedTool["inputSchema"] },
      },
    );
  }

  /** Closes the connection. Ends the server's session first, if there is one, with a short deadline. */
  async close(): Promise<void> {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    if (this.#transport instanceof StreamableHTTPClientTransport)
      await withDeadline(farewellMs, this.#transport.terminateSession()).catch(() => {});
    await this.#client.close().catch(() => {});
  }
}
