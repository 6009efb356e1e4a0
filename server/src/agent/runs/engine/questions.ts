/**
 * Questions of tools' servers to people during a call. The protocol cannot park such a call, so the run keeps its
 * process and the call stays open. In other respects, the run waits as for an approval. The run's status is
 * `pending_approval`, its time is paused, and any process may accept the answer. A question ends with its answer, at
 * its deadline, or with its call. If the process dies, the call is lost, and `recoverQuestions` releases the run.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import type { Db } from "#schema.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import type { Watch } from "#lib/watcher.ts";
import {
  approvalExists,
  cancelPending,
  cancelQuestion,
  question,
  requestApprovals,
  takeAnswer,
} from "#agent/approvals/approvals.ts";
import { expireIfDue } from "#agent/approvals/expire.ts";
import type { Call } from "#agent/calls/calls.ts";
import type { ToolQuestion, ToolReply } from "#agent/tools/tool.ts";
import type { NewEvent } from "../journal/journal.ts";
import type { RunStatus } from "../states.ts";
import { findLostQuestions, type RunRow, lockRun } from "../store.ts";
import { continueRun } from "./waiting-run.ts";
import { LostRun, type RunWriter } from "../journal/event-writer.ts";

/** Interval at which an open question is read, in case a notification is lost. */
const readEveryMs = 5_000;

type AskingCall = Pick<Call, "id" | "tool" | "arguments">;

type OpenQuestion = ReturnType<typeof question>;

export interface RunNotifier {
  watch(): Watch<RunStatus>;
  changed(): void;
}

export class Questions {
  readonly #app: Pick<App, "db" | "clock">;
  readonly #run: Pick<RunRow, "id" | "workspace_id">;
  readonly #writer: RunWriter;
  readonly #followed: RunNotifier;
  /** Clock of the run, which is paused while a question is open. */
  readonly #clock: { pause(): void; resume(): void };
  readonly #open = new Set<string>();
  readonly #asking = new Set<Promise<unknown>>();
  #changes: Promise<unknown> = Promise.resolve();

  constructor(
    app: Pick<App, "db" | "clock">,
    given: {
      run: Pick<RunRow, "id" | "workspace_id">;
      writer: RunWriter;
      clock: { pause(): void; resume(): void };
      followed: RunNotifier;
    },
  ) {
    this.#app = app;
    this.#run = given.run;
    this.#writer = given.writer;
    this.#clock = given.clock;
    this.#followed = given.followed;
  }

  /** Returns the questions of one call. `end` withdraws the open questions and then resolves. */
  ofCall(call: AskingCall, stop: AbortSignal) {
    const ended = new AbortController();
    let isQuiet = false;
    const asking = new Set<Promise<unknown>>();
    return {
      ask: (asked: ToolQuestion): Promise<ToolReply> => {
        const signal = AbortSignal.any([ended.signal, stop, asked.signal]);
        // Only the first question of a call sends a notification: a person who answers this question sees the next
        // questions.
        const raised = this.#ask(call, asked, { signal, isQuiet });
        isQuiet = true;
        const reply = raised.finally(() => {
          asking.delete(reply);
          this.#asking.delete(reply);
        });
        asking.add(reply);
        this.#asking.add(reply);
        return reply;
      },
      end: async (): Promise<void> => {
        ended.abort();
        await Promise.allSettled(asking);
      },
    };
  }

  /**
   * Resolves when no question is open. Callers must first abort the run's signal, or wait for the end of its last call.
   */
  async close(): Promise<void> {
    await Promise.allSettled(this.#asking);
  }

  async #ask(
    call: AskingCall,
    asked: ToolQuestion,
    how: { signal: AbortSignal; isQuiet: boolean },
  ): Promise<ToolReply> {
    const watch = this.#followed.watch();
    let raised: OpenQuestion | undefined;
    try {
      raised = await this.#inOrder(() => this.#raise(call, asked, how));
      await passKillPoint("agent.question.raised");
      return await this.#answer(raised, watch, how.signal);
    } finally {
      watch.end();
      const id = raised?.id;
      if (id !== undefined) await this.#inOrder(() => this.#withdraw(id));
    }
  }

  async #raise(
    call: AskingCall,
    asked: ToolQuestion,
    { signal, isQuiet }: { signal: AbortSignal; isQuiet: boolean },
  ): Promise<OpenQuestion> {
    signal.throwIfAborted();
    const at = this.#app.clock.now();
    const { message, schema, seconds } = asked;
    const raised = question({
      workspaceId: this.#run.workspace_id,
      runId: this.#run.id,
      call: { id: call.id, tool: call.tool, arguments: call.arguments as Record<string, unknown> },
      parameters: {},
      onExpire: "deny",
      at,
      expiresAt: new Date(at.getTime() + seconds * 1000),
      elicitation: { message, schema },
    });
    const { id } = raised;
    await this.#writer.commitWith(
      eventsOf(raised, [...this.#open, id]),
      { status: "pending_approval" },
      (tx) => requestApprovals(tx, [raised], { isQuiet }),
    );
    if (this.#open.size === 0) {
      this.#writer.pauseClock();
      this.#clock.pause();
    }
    this.#open.add(id);
    return raised;
  }

  async #answer(
    { id, expiresAt }: OpenQuestion,
    watch: Watch<RunStatus>,
    signal: AbortSignal,
  ): Promise<ToolReply> {
    for (;;) {
      const news = watch.next(AbortSignal.any([signal, AbortSignal.timeout(readEveryMs)]));
      signal.throwIfAborted();
      const answer = await takeAnswer(this.#app.db, id);
      // If the answer has no content, another process has read the content and acquired the run.
      if (answer?.status === "approved" && answer.content)
        return { action: "accept", content: answer.content };
      if (answer) return { action: answer.status === "denied" ? "decline" : "cancel" };
      // The approval is missing if another process ended the run and erased or resumed it.
      if (!(await approvalExists(this.#app.db, id))) throw new LostRun();
      const now = this.#app.clock.now();
      // A suspension moves the deadline, so the deadline in the row counts.
      if (now < expiresAt || !(await expireIfDue(this.#app.db, this.#run.id, now))) await news;
    }
  }

  /** Cancels a question without an answer. Resumes the run's time when no question is open. */
  async #withdraw(id: string): Promise<void> {
    try {
      await transaction(this.#app.db, async (tx) => {
        if (!(await lockRun(tx, this.#run.id))) return;
        const events = await cancelQuestion(tx, id, this.#app.clock.now());
        // Deletes an answer that arrived after the question ended.
        await takeAnswer(tx, id);
        if (events.length > 0) await continueRun(tx, this.#run.id, events);
      });
    } finally {
      this.#open.delete(id);
      if (this.#open.size === 0) {
        this.#writer.resumeClock();
        this.#clock.resume();
      }
      this.#followed.changed();
    }
  }

  /** Runs changes in sequence, so that each change knows the open questions. */
  #inOrder<T>(change: () => Promise<T>): Promise<T> {
    const next = this.#changes.then(change, change);
    this.#changes = next.catch(() => {});
    return next;
  }
}

function eventsOf(
  { id, call, at, expiresAt, elicitation }: OpenQuestion,
  open: readonly string[],
): NewEvent[] {
  const requested = {
    request_id: id,
    kind: "elicitation",
    call_id: call.id,
    tool: call.tool,
    arguments: call.arguments,
    question: elicitation,
    expires_at: expiresAt.toISOString(),
  };
  return [
    { type: "approval.requested", at, data: requested },
    { type: "run.pending_approval", at, data: { request_id: open[0], request_ids: open, sign_in: [] } },
  ];
}

/** Cancels questions whose process is dead, and releases their runs. Returns the ids of these runs. */
export async function recoverQuestions(
  { db, clock, log }: Pick<App, "db" | "clock" | "log">,
  who: Parameters<typeof findLostQuestions>[1],
): Promise<string[]> {
  const runs: string[] = [];
  for (const id of await findLostQuestions(db, who)) {
    try {
      if (await transaction(db, (tx) => recover(tx, who, id, clock.now()))) runs.push(id);
    } catch (error) {
      log.error({ error, run: id }, "cancelling open questions of a dead process failed");
    }
  }
  return runs;
}

async function recover(
  tx: Db,
  who: Parameters<typeof findLostQuestions>[1],
  id: string,
  at: Date,
): Promise<boolean> {
  await lockRun(tx, id);
  // The questions are read again under the lock, because another process may have acquired the run.
  if ((await findLostQuestions(tx, who, id)).length === 0) return false;
  await continueRun(tx, id, await cancelPending(tx, id, at));
  return true;
}
