/** Streams a run's stored events from any position to the end of the run. */
import type { App } from "#app.ts";
import type { RunExecutor } from "../engine/run-executor.ts";
import { type RunEvent, toEvent } from "../schema.ts";
import { isOver } from "../states.ts";
import { eventsAfter, findState, type RunView } from "../store.ts";

/** Maximum size of a page of events in memory. Readers at the same position share a page. */
const atOnce = { rowsMax: 500, bytesMax: 1024 ** 2 };

/**
 * Streams the events of a run after a position. The stream ends after the last event of a finished run. The caller has
 * checked access to the run.
 */
export async function* follow(
  app: Pick<App, "db" | "clock">,
  runs: RunExecutor,
  run: Pick<RunView, "id" | "session_id" | "expired" | "output_expires_at">,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<RunEvent> {
  const watch = runs.watch(run.id);
  const waiting = new AbortController();
  const ended = AbortSignal.any([signal, waiting.signal]);
  try {
    let news: Promise<unknown> | undefined;
    for (let seq = after; !signal.aborted;) {
      news ??= watch.next(ended);
      const { rows, isAll, isRead } = await watch.read(String(seq), () => page(app, run.id, seq));
      for (const row of rows) {
        seq = row.seq;
        yield toEvent(run, row, app.clock.now());
      }
      if (isRead) return;
      if (!isAll) continue;
      await news;
      news = undefined;
    }
  } finally {
    waiting.abort();
    watch.end();
  }
}

/**
 * Returns the page of events after `seq`. All readers at that position share the page. `isRead` marks the last page of
 * the run.
 */
async function page(app: Pick<App, "db">, id: string, seq: number) {
  const { rows, isAll } = await eventsAfter(app.db, id, seq, atOnce);
  if (!isAll) return { rows, isAll, isRead: false };
  const last = rows.at(-1);
  if (last) return { rows, isAll, isRead: last.type === "run.completed" || last.type === "run.failed" };
  const state = await findState(app.db, id);
  const isRead = !state || (isOver(state.status) && seq >= state.last_event_id);
  return { rows, isAll, isRead };
}
