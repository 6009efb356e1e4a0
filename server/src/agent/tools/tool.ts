/** What an agent can call, whatever is behind it: a request, a server of tools, its machine, its memory. */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import type { AgentConfig } from "../agents/config.ts";
import type { CallCommand } from "../calls/calls.ts";
import type { Fetch } from "../models/fetch.ts";
import type { ToolContent } from "./pictures.ts";
import type { WorkerAccess } from "../workers/access.ts";

export type ToolPolicy = "allow" | "ask" | "deny";

export interface Tool {
  /** As a model calls it: at most 64 of A-Z, a-z, 0-9, - and _. */
  name: string;
  description: string;
  /** JSON Schema of an object; arguments were held against it before `call`. */
  parameters: Record<string, unknown>;
  /** Null: of the agent's own. */
  toolsetId: string | null;
  policy: ToolPolicy;
  /** Calling it twice changes no more than calling it once: so it is called again where nobody knows what came of it. */
  isRepeatable: boolean;
  /**
   * A call is one command in the session's machine, which outlives this server. The call notes it before it starts, so
   * the next server process waits for the same command.
   */
  runsCommand?: boolean;
  /** Resolves also where the tool failed; throws what the signal was aborted with, and a `RunFailure` that ends the run. */
  call(call: ToolCall): Promise<ToolAnswer>;
}

export interface ToolCall {
  /** Of the journal: the same whenever the call is made again. */
  id: string;
  values: Record<string, unknown>;
  timeoutMs: number;
  /** Time of the start; `timeoutMs` counts from it. */
  startedAt: Date;
  /** Id for the command that the call starts, if its tool runs one. */
  commandId: string | null;
  /** Command that an earlier process noted. The call waits for it and starts none. */
  command: CallCommand | undefined;
  /** Stores the command in the journal. Throws if the run is over or goes on elsewhere: nothing may start then. */
  noteCommand(command: CallCommand): Promise<void>;
  /** Aborted when the run is over or goes on elsewhere. */
  signal: AbortSignal;
  /** Checked addresses alone; says itself which trace the call is part of. */
  fetch: Fetch;
  /** The same as `fetch` says, for what does not go through it. */
  headers: Readonly<Record<string, string>>;
  /** An event of the run's log, and the change it tells of, in one transaction; neither where the run is over or goes on elsewhere. */
  sayWith(type: string, data: Record<string, unknown>, change: (tx: Db) => Promise<void>): Promise<void>;
  /** Asks a person a question of the tool's server. Throws if the call ends before the answer. */
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

/** Answer to a question, in the words of MCP. `cancel`: no answer in time, or dismissed. */
export interface ToolReply {
  action: "accept" | "decline" | "cancel";
  content?: Record<string, unknown>;
}

export interface ToolAnswer {
  isOk: boolean;
  /** True if the outcome of an interrupted call is not known. */
  isUnknown?: boolean;
  /** What the model is told. */
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

/** For whom tools are. */
export interface ToolUser {
  workspaceId: string;
  agentId: string;
  sessionId: string;
  runId: string;
  /** Null: nobody in particular. */
  endUserId: string | null;
  config: AgentConfig;
  /** The server's own API; undefined where the config grants nothing of it. */
  access: WorkerAccess | undefined;
}

export interface Tools {
  tools: Tool[];
  /** Toolsets that the config names and that can't be used now. */
  unavailable: { id: string; isRequired: boolean; why: string }[];
}

/** One kind of tools. Asked once or twice a step: what it has to look up elsewhere it keeps. */
export type ToolSource = (app: App, user: ToolUser) => Promise<Tools>;
