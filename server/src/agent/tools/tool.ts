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
  /** Name of the tool for models: at most 64 of A-Z, a-z, 0-9, - and _. */
  name: string;
  description: string;
  /** JSON Schema of the arguments, an object. Arguments are validated before `call`. */
  parameters: Record<string, unknown>;
  /** Id of the tool's toolset. Null for the agent's own tools. */
  toolsetId: string | null;
  policy: ToolPolicy;
  /** True if two calls change no more than one call. Such a call is repeated after an unknown outcome. */
  isRepeatable: boolean;
  /**
   * True if a call is one command in the session's machine. The command outlives this server. The call records the
   * command before its start, so that the next server process waits for the same command.
   */
  runsCommand?: boolean;
  /**
   * Calls the tool. Resolves also if the tool fails. Throws the reason of an aborted signal, or a `RunFailure` that
   * ends the run.
   */
  call(call: ToolCall): Promise<ToolResult>;
}

export interface ToolCall {
  /** Id of the call in the journal. A repeated call has the same id. */
  id: string;
  values: Record<string, unknown>;
  timeoutMs: number;
  /** Start time of the call. `timeoutMs` counts from this time. */
  startedAt: Date;
  /** Id for the command that the call starts. Null if the tool runs no command. */
  commandId: string | null;
  /** Command that an earlier process recorded. The call waits for this command and starts no other. */
  command: CallCommand | undefined;
  /**
   * Records the command in the journal. Throws if the run is over or belongs to another process. After an error, the
   * call must not start the command.
   */
  noteCommand(command: CallCommand): Promise<void>;
  /** Signal that is aborted when the run ends or moves to another process. */
  signal: AbortSignal;
  /** Fetch that connects to checked addresses only, and adds the trace headers. */
  fetch: Fetch;
  /** The trace headers, for requests that do not use `fetch`. */
  headers: Readonly<Record<string, string>>;
  /**
   * Emits an event of the run and commits `change` in the same transaction. If the run is over or belongs to another
   * process, neither happens.
   */
  emitWith(type: string, data: Record<string, unknown>, change: (tx: Db) => Promise<void>): Promise<void>;
  /**
   * Passes a question of the tool's server to a person, and resolves to the reply. Throws if the call ends before the
   * reply.
   */
  ask(question: ToolQuestion): Promise<ToolReply>;
}

/** Question of a tool's server to a person, during a call. */
export interface ToolQuestion {
  message: string;
  /** JSON Schema of the answer's content. */
  schema: Record<string, unknown>;
  /** Time in seconds until the question expires. */
  seconds: number;
  /** Signal that is aborted when the server withdraws the question. */
  signal: AbortSignal;
}

/** Reply to a question, in MCP's terms. `cancel`: the person dismissed the question, or did not reply in time. */
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
  /** Set if the call needs a sign-in of a person first. */
  signIn?: SignInNeeded | undefined;
  /** The result with its pictures, for models that accept them. Undefined if the result has no pictures. */
  content?: ToolContent | undefined;
}

/** Sign-in that a call needs. The call had no effect, so it may be repeated after the sign-in. */
export interface SignInNeeded {
  toolsetId: string;
  /** Id of the end user who must sign in. */
  who: string;
  /** Id of the connection that does not suffice. Null if the person has no connection. */
  connection: string | null;
}

/** User for whom the tools act. */
export interface ToolUser {
  workspaceId: string;
  agentId: string;
  sessionId: string;
  runId: string;
  /** Id of the end user. Null if the run has none. */
  endUserId: string | null;
  config: AgentConfig;
  /** Access to the server's own API. Undefined if the config grants none. */
  access: WorkerAccess | undefined;
}

export interface Tools {
  tools: Tool[];
  /** Toolsets of the config that cannot be used now. */
  unavailable: { id: string; isRequired: boolean; why: string }[];
}

/** Source of one kind of tools. A step calls the source up to twice, so the source caches its lookups. */
export type ToolSource = (app: App, user: ToolUser) => Promise<Tools>;
