/**
 * Erases texts of runs an hour after their end. Each run has its own transaction, so that an error with one run does
 * not block other runs.
 */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { isTransient } from "#db/transient-errors.ts";
import { stripTexts, findExpiring } from "../store.ts";

const atOnce = 100;

/** Erases the expired texts of all runs. Stops between two runs after `signal` is aborted. */
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
    // The next sweep retries failed runs.
    if (ids.length < atOnce || left > 0) return;
  }
}
