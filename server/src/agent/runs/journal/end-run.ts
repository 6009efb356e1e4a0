/** How a run ends: the change of its row and the last event of its log, which come in one transaction. */
import type { Db } from "#schema.ts";
import { cancelPending } from "#agent/approvals/approvals.ts";
import { cancelWaits } from "#agent/oauth/waits/waits.ts";
import { withCure } from "../engine/run-failure.ts";
import { type FinishReason, isOver, type RunErrorCode } from "../states.ts";
import { type Advanced, type NewEvent, overrule, type RunChange } from "./journal.ts";
import { dropTurn, findRunLocked } from "../store.ts";

/** The document's hour. */
export const outputKeptMs = 3_600_000;

export interface Failure {
  code: RunErrorCode;
  /** For the run's owner: no secret, no word of the log's. */
  message: string;
  /** In place of the code's own. */
  cure?: string | undefined;
  /** Incomplete output that is kept. */
  output?: string | undefined;
}

interface End {
  event: NewEvent;
  change: RunChange;
}

export function completed(
  output: string,
  tokens: { input: number; output: number; total: number },
  finishReason: FinishReason,
  at: Date,
): End {
  const isTruncated = finishReason === "length";
  return {
    event: {
      type: "run.completed",
      at,
      data: { output, tokens, finish_reason: finishReason, output_truncated: isTruncated },
    },
    change: { status: "completed", output, finish_reason: finishReason, ...ended(at) },
  };
}

export function failed(failure: Failure, at: Date): End {
  const { code } = failure;
  const message = withCure(failure);
  return {
    event: { type: "run.failed", at, data: { error_code: code, error_message: message } },
    change: {
      status: "failed",
      error_code: code,
      error_message: message,
      ...(failure.output === undefined ? {} : { output: failure.output }),
      finish_reason: "error",
      ...ended(at),
    },
  };
}

const ended = (at: Date) => ({
  finished_at: at,
  output_expires_at: new Date(at.getTime() + outputKeptMs),
  process_id: null,
});

/**
 * Whoever carries it out finds that it is theirs no more, and what it asked a person needs no answer. `before`: events
 * that belong in front of the last one. Undefined where it was over already.
 */
export async function endFromOutside(
  tx: Db,
  id: string,
  failure: Failure,
  at: Date,
  before: readonly NewEvent[] = [],
): Promise<Advanced | undefined> {
  // The run's row first, as whoever decides does.
  const run = await findRunLocked(tx, id);
  if (!run || isOver(run.status)) return undefined;
  if (run.waits_turn) await dropTurn(tx, id);
  const cancelled = run.status === "pending_approval" ? await cancelAll(tx, id, at) : [];
  const { event, change } = failed(failure, at);
  // A wait for a model is counted when it begins.
  const leftMs = run.status === "queued" && run.retry_at ? run.retry_at.getTime() - at.getTime() : 0;
  return overrule(tx, id, [...before, ...cancelled, event], { ...change, activeMs: Math.min(0, -leftMs) });
}

/** Cancels what the run waits for, and returns the events about it. */
async function cancelAll(tx: Db, id: string, at: Date): Promise<NewEvent[]> {
  return [...(await cancelPending(tx, id, at)), ...(await cancelWaits(tx, id, at))];
}
