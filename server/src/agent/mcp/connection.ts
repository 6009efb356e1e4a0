/**
 * A connection to an MCP server. What the server says is hostile: each wait has a deadline, nothing of it is compiled,
 * and its requests for more (another model's words, a question that no call allows) are refused.
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
import { within } from "./within.ts";

export type { CallToolResult, ListedTool, ReadResourceResult, Resource };

const farewellMs = 2_000;

export class McpConnection {
  readonly #client: Client;
  readonly #transport: StreamableHTTPClientTransport | SSEClientTransport;
  readonly #calls: AskingCalls;
  readonly #isWorn: () => boolean;
  #isOpen = true;

  /** Of a client that is connected. */
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
      // Over SSE all there is is one stream, and its reader would begin it again for ever.
      if (error.name === "SseError") void this.close();
    };
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** It still serves, but should be followed by another before what may be read over it is used up. */
  get isWorn(): boolean {
    return this.#isWorn();
  }

  /** Throws where nothing answers; one that does not know what it is asked is there. */
  async ping(timeoutMs: number): Promise<void> {
    const options = { timeout: timeoutMs };
    const isOfToday = this.#client.getProtocolEra() === "modern";
    const asked: Promise<unknown> = isOfToday ? this.#client.discover(options) : this.#client.ping(options);
    await within(timeoutMs, asked).catch((error: unknown) => {
      if (!(error instanceof ProtocolError)) throw error;
    });
  }

  async tools(timeoutMs: number): Promise<ListedTool[]> {
    if (!this.#client.getServerCapabilities()?.tools) return [];
    const options = { timeout: timeoutMs, cacheMode: "bypass" } as const;
    const { tools } = await within(timeoutMs, this.#client.listTools(undefined, options));
    return tools;
  }

  get hasResources(): boolean {
    return this.#client.getServerCapabilities()?.resources !== undefined;
  }

  /** Lists resources, up to the client's maximum of pages. */
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
      /** Asks a person what the server asks during this call. */
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
