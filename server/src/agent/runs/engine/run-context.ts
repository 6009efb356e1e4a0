/** Context and progress of a run's execution. */
import type { Call } from "#agent/calls/calls.ts";
import type { Fetch } from "#agent/models/fetch.ts";
import type { Conversation } from "#agent/sessions/conversation.ts";
import type { RunTrace } from "#agent/tracing/tracing.ts";
import type { WorkerAccess } from "#agent/workers/access.ts";
import type { OwnApi } from "#agent/workers/workers.ts";
import type { RunNotifier, Questions } from "./questions.ts";
import type { RunRow } from "../store.ts";
import type { SummaryFailure } from "./summarize.ts";
import type { RunWriter } from "../journal/event-writer.ts";
import type { AgentConfig } from "#agent/agents/config.ts";

/** A run that this process acquired, with the parts that are already in memory. */
export interface AcquiredRun {
  row: RunRow;
  config?: AgentConfig | undefined;
  conversation?: Conversation | undefined;
}

/** Progress of a run in the memory of the process that executes it. Only this process changes it. */
export interface RunProgress {
  run: RunRow;
  conversation: Conversation;
  /** Calls of the last step, if this process ran it. Otherwise they are read from the journal. */
  calls: Call[] | undefined;
  /** JSON of the previous step's tools, if this process ran that step. */
  toolsSent?: string;
  /**
   * Set after a failed summary of this run, because each step would pay for another attempt. The next run of the
   * session tries again.
   */
  summaryFailure?: SummaryFailure;
  /** Facts of the memory at the first step of this process. */
  remembered?: { text: string | undefined };
}

/** Thrown to interrupt a healthy run. It continues later from its last complete step. */
export class RunInterrupted extends Error {}

/** Context at the start of a run; `executeRun` adds the rest. */
export type RunSetup = Omit<RunContext, "questions"> & { followed: RunNotifier };

export interface RunContext {
  writer: RunWriter;
  /** Aborted with the reason of the stop. */
  stop: AbortController;
  /** True if the run's workspace is suspended, so that no step may start. */
  isSuspended: () => boolean;
  /** Fetch for models and tools; it connects to checked addresses only. */
  fetch: Fetch;
  /** Pause before the first retry of a model. */
  pauseMs: number;
  /** Limit for the conversation's tokens in the rest of the run, after a model rejected more. */
  maxConversationTokens?: number;
  /** Undefined if tracing is off. */
  trace?: RunTrace | undefined;
  /** The `traceparent` header of the caller. */
  traceparent: string | null;
  /** The server's own API. Undefined if it is not available. */
  api?: OwnApi | undefined;
  /** Questions of tools' servers to people during open calls. */
  questions: Questions;
  /** Access of this run to the platform. Undefined if its config grants none. */
  access?: WorkerAccess | undefined;
}
