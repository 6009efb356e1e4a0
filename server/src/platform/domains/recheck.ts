/**
 * Looks at custom domains again, as long as they are there. One job goes through those that are due and then adds
 * itself for the next round, so that of several servers one does it, and one that dies is followed by another.
 */
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { checkAgain } from "./domains.ts";
import { listDue } from "./store.ts";

type Needs = Pick<App, "db" | "clock" | "config" | "jobs" | "log">;

export const recheckTask = "domains.recheck";
const everyMs = 30_000;
/** How long nobody looks again: at one that is verified or has failed, and at one that may be right any minute. */
const settledMs = 10 * 60_000;
const unsettledMs = 60_000;
const looksAtOnce = 8;
/** Of one round. */
const maxDue = 200;

/** There is one such job, whoever asks for it. */
export function scheduleRecheck({ jobs, db, clock }: Needs): Promise<void> {
  const runAt = new Date(clock.now().getTime() + everyMs);
  return jobs.add(db, recheckTask, {}, { key: recheckTask, runAt });
}

export async function recheck(app: Needs): Promise<void> {
  try {
    await checkDue(app);
  } catch (error) {
    app.log.warn({ error }, "custom domains could not be looked at; the next round tries again");
  }
  await scheduleRecheck(app);
}

/** Those that are due, each at most once. */
export async function checkDue(app: Needs): Promise<void> {
  const now = app.clock.now().getTime();
  const since = { settled: new Date(now - settledMs), unsettled: new Date(now - unsettledMs) };
  const due = await listDue(app.db, since, maxDue);
  const places = new Semaphore(looksAtOnce);
  await Promise.all(due.map((row) => places.run(() => checkAgain(app, row))));
}
