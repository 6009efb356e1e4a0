/**
 * How a connection to an MCP server comes to be: of the newest generation that it speaks, over streamable HTTP, and
 * over SSE where it knows nothing newer.
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
import { answerQuestions, type Elicitation, elicitationCapability } from "./elicitation.ts";
import { type Bounds, boundedFetch } from "./fetch.ts";
import { within } from "./within.ts";

export interface McpAddress {
  url: string;
  /** With every request. */
  headers: Readonly<Record<string, string>>;
  /** A bearer's token of the moment, asked for before every request. */
  token?: (() => Promise<string | undefined>) | undefined;
}

export interface OpenOptions {
  fetch: Fetch;
  timeoutMs: number;
  bounds?: Bounds;
  /** The server says that its tools are others now. */
  onToolsChanged?: () => void;
  /** Undefined: elicitation is not offered to the server. */
  elicitation?: Elicitation | undefined;
}

/** Pictures in base64 are part of an answer. */
const answerMaxBytes = 8 * 1024 ** 2;
/** Of a connection that is kept: a server that never stops talking is not listened to for ever. */
const allMaxBytes = 64 * 1024 ** 2;
const pagesMax = 20;
/** Longest time that a question to a person may be open: the maximum of `elicitation_seconds`. */
const questionMaxMs = 86_400_000;
/** What servers answer who know no streamable HTTP. */
const unknownThere: readonly (number | undefined)[] = [400, 404, 405, 406, 415];

/** Whatever a tool promises about its results, the model reads them as they are: no schema of a server's is compiled. */
const takesAll: NonNullable<ClientOptions["jsonSchemaValidator"]> = {
  getValidator: () => (input) => ({ valid: true, data: input as never, errorMessage: undefined }),
};

/** Throws what the server answered, or why it can't be reached. */
export async function openMcp(address: McpAddress, options: OpenOptions): Promise<McpConnection> {
  const startedMs = performance.now();
  try {
    return await dial(address, "streamable", options);
  } catch (error) {
    if (!(error instanceof SdkHttpError) || !unknownThere.includes(error.status)) throw error;
    const leftMs = Math.max(1, options.timeoutMs - (performance.now() - startedMs));
    return await dial(address, "sse", { ...options, timeoutMs: leftMs }).catch(() => {
      // Where it speaks neither, the first refusal says more.
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
  // A server whose call waits for a person is silent meanwhile.
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
  if (elicitation) answerQuestions(client, elicitation, calls);
  try {
    await within(timeoutMs, client.connect(transport, { timeout: timeoutMs }));
    return new McpConnection(client, transport, calls, () => meter.bytes > bounds.allMaxBytes / 2);
  } catch (error) {
    await client.close().catch(() => {});
    await transport.close().catch(() => {});
    throw error;
  }
}

/** A stream that ended is begun again, but not at once however often a server ends it. */
function patience(): (again: () => void, delayMs: number) => () => void {
  let left = 50;
  return (again, delayMs) => {
    left -= 1;
    const timer = setTimeout(() => left > 0 && again(), Math.min(Math.max(delayMs, 100), 30_000));
    timer.unref();
    return () => clearTimeout(timer);
  };
}
