/**
 * Opens a connection to an MCP server with the newest protocol version that both sides support. Uses streamable HTTP,
 * or SSE for older servers.
 */
import {
  Client,
  type ClientOptions,
  SdkHttpError,
  SSEClientTransport,
  StreamableHTTPClientTransport,
} from "@modelcontextprotocol/client";
import type { Fetch } from "../models/fetch.ts";
import { McpConnection } from "./connection.ts";
import { AskingCalls } from "./asking-calls.ts";
import { handleElicitation, type Elicitation, elicitationCapability } from "./elicitation.ts";
import { type Bounds, boundedFetch } from "./fetch.ts";
import { withDeadline } from "./with-deadline.ts";

export interface McpAddress {
  url: string;
  /** Headers of every request. */
  headers: Readonly<Record<string, string>>;
  /** Returns the current bearer token. This function is called before every request. */
  token?: (() => Promise<string | undefined>) | undefined;
}

export interface OpenOptions {
  fetch: Fetch;
  timeoutMs: number;
  bounds?: Bounds;
  /** Callback for an announcement of the server that its list of tools changed. */
  onToolsChanged?: () => void;
  /** Handling of the server's questions. If undefined, the client does not offer elicitation. */
  elicitation?: Elicitation | undefined;
}

/** Maximum size of a response, which may include pictures in base64. */
const answerMaxBytes = 8 * 1024 ** 2;
/** Maximum number of bytes that a kept connection reads in total. The limit bounds an endless stream. */
const allMaxBytes = 64 * 1024 ** 2;
const pagesMax = 20;
/** Longest time that a question to a person may be open: the maximum of `elicitation_seconds`. */
const questionMaxMs = 86_400_000;
/** Status codes of servers that do not support streamable HTTP. */
const unknownThere: readonly (number | undefined)[] = [400, 404, 405, 406, 415];

/**
 * Validator that accepts every result, because the model reads results as they are. No schema of a server is compiled.
 */
const takesAll: NonNullable<ClientOptions["jsonSchemaValidator"]> = {
  getValidator: () => (input) => ({ valid: true, data: input as never, errorMessage: undefined }),
};

/** Opens a connection. Throws the server's error, or the reason why the server is unreachable. */
export async function openMcp(address: McpAddress, options: OpenOptions): Promise<McpConnection> {
  const startedMs = performance.now();
  try {
    return await dial(address, "streamable", options);
  } catch (error) {
    if (!(error instanceof SdkHttpError) || !unknownThere.includes(error.status)) throw error;
    const leftMs = Math.max(1, options.timeoutMs - (performance.now() - startedMs));
    return await dial(address, "sse", { ...options, timeoutMs: leftMs }).catch(() => {
      // If the server supports neither transport, the error of streamable HTTP is more useful.
      throw error;
    });
  }
}

async function dial(
  { url, headers, token }: McpAddress,
  kind: "streamable" | "sse",
  { fetch, timeoutMs, bounds = { answerMaxBytes, allMaxBytes }, onToolsChanged, elicitation }: OpenOptions,
): Promise<McpConnection> {
  const { origin } = new URL(url);
  const meter = { bytes: 0 };
  // Fetch with a long timeout for silence, because the server is silent while its call waits for a person.
  const waiting: Fetch = (input, init) =>
    fetch(input, { ...init, silenceMs: questionMaxMs + timeoutMs } as RequestInit);
  const common = {
    fetch: boundedFetch(elicitation === "person" ? waiting : fetch, origin, bounds, meter),
    requestInit: { headers: { ...headers } },
    ...(token ? { authProvider: { token } } : {}),
  };
  const transport =
    kind === "sse"
      ? new SSEClientTransport(new URL(url), common)
      : new StreamableHTTPClientTransport(new URL(url), { ...common, reconnectionScheduler: patience() });
  const client = new Client(
    { name: "kontor", version: "1" },
    {
      jsonSchemaValidator: takesAll,
      listMaxPages: pagesMax,
      ...(elicitation ? { capabilities: elicitationCapability } : {}),
      versionNegotiation: { mode: kind === "sse" ? "legacy" : "auto" },
      ...(onToolsChanged
        ? { listChanged: { tools: { autoRefresh: false, debounceMs: 500, onChanged: onToolsChanged } } }
        : {}),
    },
  );
  const calls = new AskingCalls();
  if (elicitation) handleElicitation(client, elicitation, calls);
  try {
    await withDeadline(timeoutMs, client.connect(transport, { timeout: timeoutMs }));
    return new McpConnection(client, transport, calls, () => meter.bytes > bounds.allMaxBytes / 2);
  } catch (error) {
    await client.close().catch(() => {});
    await transport.close().catch(() => {});
    throw error;
  }
}

/**
 * Returns the function that reconnects an ended stream with a backoff. So a server that ends streams at once causes no
 * load.
 */
function patience(): (again: () => void, delayMs: number) => () => void {
  let left = 50;
  return (again, delayMs) => {
    left -= 1;
    const timer = setTimeout(() => left > 0 && again(), Math.min(Math.max(delayMs, 100), 30_000));
    timer.unref();
    return () => clearTimeout(timer);
  };
}
