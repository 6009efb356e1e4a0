/** What an agent can call, whatever is behind it: a request, a server of tools, its machine, its memory. */
import type { App } from "#app.ts";
import type { Db } from "#db/db.ts";
import type { AgentConfig } from "../agents/config.ts";
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
  /** Resolves also where the tool failed; throws what the signal was aborted with, and a `RunFailure` that ends the run. */
  call(call: ToolCall): Promise<ToolAnswer>;
}

export interface ToolCall {
  /** Of the journal: the same whenever the call is made again. */
  id: string;
  values: Record<string, unknown>;
  timeoutMs: number;
  /** Aborted when the run is over or goes on elsewhere. */
  signal: AbortSignal;
  /** Checked addresses alone; says itself which trace the call is part of. */
  fetch: Fetch;
  /** The same as `fetch` says, for what does not go through it. */
  headers: Readonly<Record<string, string>>;
  /** An event of the run's log, and the change it tells of, in one transaction; neither where the run is over or goes on elsewhere. */
  sayWith(type: string, data: Record<string, unknown>, change: (tx: Db) => Promise<void>): Promise<void>;
}

export interface ToolAnswer {
  isOk: boolean;
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
