/**
 * Erases texts of runs an hour after their end. Each run has its own transaction, so that a broken one does not block
 * others.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { isTransient } from "#db/transient-errors.ts";
import { stripTexts, findExpiring } from "../store.ts";

const atOnce = 100;

/** Stops between two runs after `signal` is aborted. */
export async function stripExpiredTexts(
  { db, log }: Pick<App, "db" | "log">,
  now: Date,
  signal?: AbortSignal,
): Promise<void> {
  for (;;) {
    const ids = await findExpiring(db, now, atOnce);
    let left = 0;
    for (const run of ids) {
      if (signal?.aborted) return;
      try {
        await transaction(db, (tx) => stripTexts(tx, run, { now })).catch(async (error: unknown) => {
          if (isTransient(error)) throw error;
          log.warn({ error, run }, "stripping a run's events failed; erasing them whole");
          await transaction(db, (tx) => stripTexts(tx, run, { now, isBroken: true }));
        });
      } catch (error) {
        left += 1;
        log.error({ error, run }, "erasing expired texts of a run failed");
      }
    }
    // The next sweep retries runs that failed.
    if (ids.length < atOnce || left > 0) return;
  }
}
