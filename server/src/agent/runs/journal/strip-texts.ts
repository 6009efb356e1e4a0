/** What runs said goes an hour after they ended, run by run: one that can't be taken apart keeps no other's. */
import type { App } from "#app.ts";
import { transaction } from "#db/db.ts";
import { isTransient } from "#db/transient-errors.ts";
import { expireOutput, findExpiring } from "../store.ts";

const atOnce = 100;

/** Ends early, between two runs, where `signal` says so. */
export async function forgetOutputs(
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
        await transaction(db, (tx) => expireOutput(tx, run, { now })).catch(async (error: unknown) => {
          if (isTransient(error)) throw error;
          log.warn({ error, run }, "a run's log can't be taken apart: its events go whole");
          await transaction(db, (tx) => expireOutput(tx, run, { now, isBroken: true }));
        });
      } catch (error) {
        left += 1;
        log.error({ error, run }, "what a run said is kept past its hour");
      }
    }
    // Those that are left are tried again with the next sweep.
    if (ids.length < atOnce || left > 0) return;
  }
}
