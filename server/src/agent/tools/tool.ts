/** A tool that an agent can call: a request, a tool of a server, or an operation of its machine or memory. */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { CallCommand } from "../calls/calls.ts";
import type { Fetch } from "../models/fetch.ts";
import type { ToolContent } from "./pictures.ts";
import type { WorkerAccess } from "../workers/access.ts";

export type ToolPolicy = "allow" | "ask" | "deny";

export interface Tool {
  /** Name for models: at most 64 of A-Z, a-z, 0-9, - and _. */
  name: string;
  description: string;
  /** JSON Schema of an object. Arguments are validated before `call`. */
  parameters: Record<string, unknown>;
  /** Null for the agent's own tools. */
  toolsetId: string | null;
  policy: ToolPolicy;
  /** True if a repeated call changes no more than one call. Such a call is repeated after an unknown outcome. */
  isRepeatable: boolean;
  /**
   * A call is one command in the session's machine, which outlives this server. The call records the command before its
   * start, so that the next server process waits for the same command.
   */
  runsCommand?: boolean;
  /** Resolves also if the tool fails. Throws the reason of an aborted signal, and a `RunFailure` that ends the run. */
  call(call: ToolCall): Promise<ToolResult>;
}

export interface ToolCall {
  /** Id of the call in the journal. A repeated call has the same id. */
  id: string;
  values: Record<string, unknown>;
  timeoutMs: number;
  /** Start time; `timeoutMs` counts from this time. */
  startedAt: Date;
  /** Id for the command that the call starts, if its tool runs one. */
  commandId: string | null;
  /** Command that an earlier process recorded. The call waits for this command and starts none. */
  command: CallCommand | undefined;
  /**
   * Records the command in the journal. Throws if the run is over or belongs to another process; then no command may
   * start.
   */
  noteCommand(command: CallCommand): Promise<void>;
  /** Aborted when the run ends or moves to another process. */
  signal: AbortSignal;
  /** Connects to checked addresses only, and adds the trace headers. */
  fetch: Fetch;
  /** The trace headers, for requests that do not use `fetch`. */
  headers: Readonly<Record<string, string>>;
  /**
   * Emits an event of the run and commits `change` in the same transaction. Does neither if the run is over or belongs
   * to another process.
   */
  emitWith(type: string, data: Record<string, unknown>, change: (tx: Db) => Promise<void>): Promise<void>;
  /** Sends a question of the tool's server to a person. Throws if the call ends before the reply. */
  ask(question: ToolQuestion): Promise<ToolReply>;
}

/** Question of a tool's server to a person, in the middle of a call. */
export interface ToolQuestion {
  message: string;
  /** JSON Schema of the answer's content. */
  schema: Record<string, unknown>;
  /** Time until the question expires. */
  seconds: number;
  /** Aborted when the server withdraws the question. */
  signal: AbortSignal;
}

/** Reply to a question, in MCP's terms. `cancel`: dismissed, or no reply in time. */
export interface ToolReply {
  action: "accept" | "decline" | "cancel";
  content?: Record<string, unknown>;
}

export interface ToolResult {
  isOk: boolean;
  /** True if the outcome of an interrupted call is not known. */
  isUnknown?: boolean;
  /** Result for the model. */
  text: string;
  /** Set if a person has to sign in first. */
  signIn?: SignInNeeded | undefined;
  /** The result with its pictures, if there are any, for models that accept them. */
  content?: ToolContent | undefined;
}

/** Sign-in that a call needs. The call had no effect, so it may be made again afterwards. */
export interface SignInNeeded {
  toolsetId: string;
  /** End user. */
  who: string;
  /** Id of the connection that does not suffice; null if the person has none. */
  connection: string | null;
}

/** User for whom the tools act. */
export interface ToolUser {
  workspaceId: string;
  agentId: string;
  sessionId: string;
  runId: string;
  /** Null without an end user. */
  endUserId: string | null;
  config: AgentConfig;
  /** Access to the server's own API; undefined if the config grants none. */
  access: WorkerAccess | undefined;
}

export interface Tools {
  tools: Tool[];
  /** Toolsets of the config that cannot be used now. */
  unavailable: { id: string; isRequired: boolean; why: string }[];
}

/** Source of one kind of tools. It is called up to twice per step, so it caches its lookups. */
export type ToolSource = (app: App, user: ToolUser) => Promise<Tools>;
