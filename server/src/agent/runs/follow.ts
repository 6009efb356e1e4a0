/** A run's log from any place on, to its end: what is stored, as it is stored. */
import type { App } from "#app.ts";
import type { AgentRuns } from "./runs.ts";
import { type RunEvent, toEvent } from "./schema.ts";
import { isOver } from "./states.ts";
import { eventsAfter, findState, type RunView } from "./store.ts";

/** What one reader has in memory at a time. */
const atOnce = { rowsMax: 500, bytesMax: 1024 ** 2 };

/** For whoever was allowed to see it. Ends after the last event of a run that is over. */
export async function* follow(
  app: Pick<App, "db" | "clock">,
  runs: AgentRuns,
  run: Pick<RunView, "id" | "session_id" | "expired" | "output_expires_at">,
  after: number,
  signal: AbortSignal,
): AsyncGenerator<RunEvent> {
  let seq = after;
  while (!signal.aborted) {
    const waiting = new AbortController();
    const news = runs.next(run.id, AbortSignal.any([signal, waiting.signal]));
    try {
      const { rows, isAll } = await eventsAfter(app.db, run.id, seq, atOnce);
      for (const row of rows) {
        seq = row.seq;
        yield toEvent(run, row, app.clock.now());
      }
      if (!isAll) continue;
      const last = rows.at(-1);
      if (last ? last.type === "run.completed" || last.type === "run.failed" : await isRead(app, run.id, seq))
        return;
      await news;
    } finally {
      waiting.abort();
    }
  }
}

async function isRead(app: Pick<App, "db">, id: string, seq: number): Promise<boolean> {
  const state = await findState(app.db, id);
  return !state || (isOver(state.status) && seq >= state.last_event_id);
}
