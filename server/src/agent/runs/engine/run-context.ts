/** What the work on one run is done with. */
import type { Call } from "#agent/calls/calls.ts";
import type { Fetch } from "#agent/models/fetch.ts";
import type { Conversation } from "#agent/sessions/conversation.ts";
import type { RunTrace } from "#agent/tracing/tracing.ts";
import type { WorkerAccess } from "#agent/workers/access.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import type { Followed, Questions } from "./questions.ts";
import type { RunRow } from "../store.ts";
import type { NotSummarized } from "./summarize.ts";
import type { RunWriter } from "../journal/event-writer.ts";
import type { AgentConfig } from "#agent/agents/config.ts";

/** A run that this process has, and what it knows of it. */
export interface Carried {
  row: RunRow;
  config?: AgentConfig | undefined;
  conversation?: Conversation | undefined;
}


/** Where a run is, in the memory of who carries it out: no one else changes any of it meanwhile. */
export interface Going {
  run: RunRow;
  conversation: Conversation;
  /** Of the step that was taken here last; undefined where they have to be read. */
  calls: Call[] | undefined;
  /** JSON of the previous step's tools, if this process ran that step. */
  toolsTold?: string;
  /** The summary failed in this run: each step would pay for it again. The next run of the session tries again. */
  notSummarized?: NotSummarized;
  /** Facts of the memory as they were at the first step here. */
  remembered?: { text: string | undefined };
}

/** Thrown to interrupt a healthy run. It continues later from its last complete step. */
export class Interrupted extends Error {}

/** As a run begins; `carryOut` adds the rest. */
export type GivenWork = Omit<Work, "questions"> & { followed: Followed };

export interface Work {
  writer: RunWriter;
  /** Aborted with the reason to stop for. */
  stop: AbortController;
  /** True if the run's workspace is suspended, so that no step may start. */
  isHeld: () => boolean;
  /** To models and to tools: checked addresses alone. */
  fetch: Fetch;
  /** Before a model is asked again, at first. */
  pauseMs: number;
  /** Tokens of the conversation, once a model refused more: for the rest of the run no more are told. */
  tellAtMost?: number;
  /** Undefined where nobody looks. */
  trace?: RunTrace | undefined;
  /** The caller's header. */
  traceparent: string | null;
  /** The server's own API, where there is one. */
  api?: OwnApi | undefined;
  /** Questions of tools' servers to people, with the calls open. */
  questions: Questions;
  /** Of this run to it; undefined where its config grants nothing. */
  access?: WorkerAccess | undefined;
}
