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

/** A run that this process acquired, with the data about the run that is already in memory. */
export interface AcquiredRun {
  row: RunRow;
  config?: AgentConfig | undefined;
  conversation?: Conversation | undefined;
}

/** Progress of a run in the memory of the process that executes it. Only this process changes it. */
export interface RunProgress {
  run: RunRow;
  conversation: Conversation;
  /** Calls of the last step, if this process executed the step. Otherwise the calls are read from the journal. */
  calls: Call[] | undefined;
  /** Tools of the previous step as JSON, if this process executed that step. */
  toolsSent?: string;
  /**
   * Reason why a summary of this run failed. If set, later steps do not try again, because every attempt costs tokens.
   * The next run of the session tries again.
   */
  summaryFailure?: SummaryFailure;
  /** Facts of the memory as they were at the first step of this process. */
  remembered?: { text: string | undefined };
}

/** Thrown to interrupt a healthy run. The run continues later from its last complete step. */
export class RunInterrupted extends Error {}

/** Context at the start of a run; `executeRun` adds the rest. */
export type RunSetup = Omit<RunContext, "questions"> & { followed: RunNotifier };

export interface RunContext {
  writer: RunWriter;
  /** Aborted with the reason when the execution must stop. */
  stop: AbortController;
  /** True if the run's workspace is suspended, so that no step may start. */
  isSuspended: () => boolean;
  /** Fetch for models and tools, which connects to checked addresses only. */
  fetch: Fetch;
  /** Pause before the first retry of a model, in milliseconds. */
  pauseMs: number;
  /** Maximum tokens of the conversation in the rest of the run, set after a model rejected more. */
  maxConversationTokens?: number;
  /** Trace of the run. Undefined if tracing is off. */
  trace?: RunTrace | undefined;
  /** The caller's `traceparent` header. Null without one. */
  traceparent: string | null;
  /** The server's own API. Undefined if the API is not available. */
  api?: OwnApi | undefined;
  /** Questions of tools' servers to people during open calls. */
  questions: Questions;
  /** Access of this run to the platform. Undefined if the agent's config grants none. */
  access?: WorkerAccess | undefined;
}
