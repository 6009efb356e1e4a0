/** The end of a run: the change of its row and its last event, committed in one transaction. */
import type { Db } from "#schema.ts";
import { cancelPending, deleteContents } from "#agent/approvals/approvals.ts";
import { cancelWaits } from "#agent/oauth/waits/waits.ts";
import { withCure } from "../engine/run-failure.ts";
import { type FinishReason, isOver, type RunErrorCode } from "../states.ts";
import { type AdvancedRun, type NewEvent, changeFromOutside, type RunChange } from "./journal.ts";
import { deleteTurn, lockRun } from "../store.ts";

/** Retention of outputs and texts: one hour after the run's end, as documented. */
const outputKeptMs = 3_600_000;

export interface Failure {
  code: RunErrorCode;
  /** Message for the run's owner, without secrets. */
  message: string;
  /** Cure that replaces the default cure of the error code. */
  cure?: string | undefined;
  /** Incomplete output that is kept. */
  output?: string | undefined;
}

interface End {
  event: NewEvent;
  change: RunChange;
}

export function buildCompletion(
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
    change: { status: "completed", output, finish_reason: finishReason, ...endColumns(at) },
  };
}

export function buildFailure(failure: Failure, at: Date): End {
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
      ...endColumns(at),
    },
  };
}

const endColumns = (at: Date) => ({
  finished_at: at,
  output_expires_at: new Date(at.getTime() + outputKeptMs),
  process_id: null,
});

/**
 * Ends a run from another request or process. The executing process then loses its claim, and open approvals and
 * sign-ins are cancelled. `before`: events that precede the last event. Returns undefined if the run had ended.
 */
export async function endFromOutside(
  tx: Db,
  id: string,
  failure: Failure,
  at: Date,
  before: readonly NewEvent[] = [],
): Promise<AdvancedRun | undefined> {
  // The run's row is locked first, as for a decision.
  const run = await lockRun(tx, id);
  if (!run || isOver(run.status)) return undefined;
  if (run.waits_turn) await deleteTurn(tx, id);
  const cancelled = run.status === "pending_approval" ? await cancelAll(tx, id, at) : [];
  // The process that should read the answer may be dead.
  await deleteContents(tx, id);
  const { event, change } = buildFailure(failure, at);
  // The whole wait for a model was counted when the wait began.
  const leftMs = run.status === "queued" && run.retry_at ? run.retry_at.getTime() - at.getTime() : 0;
  return changeFromOutside(tx, id, [...before, ...cancelled, event], {
    ...change,
    activeMs: Math.min(0, -leftMs),
  });
}

/** Cancels approvals and waits of the run, and returns their events. */
async function cancelAll(tx: Db, id: string, at: Date): Promise<NewEvent[]> {
  return [...(await cancelPending(tx, id, at)), ...(await cancelWaits(tx, id, at))];
}
