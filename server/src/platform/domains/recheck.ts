/**
 * Checks custom domains repeatedly. A single job checks those that are due, then queues itself for the next round. So one of
 * several servers does it, and another takes over if that one dies.
 */
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { checkAgain } from "./domains.ts";
import { listDue } from "./store.ts";

type Needs = Pick<App, "db" | "clock" | "config" | "jobs" | "log">;

export const recheckTask = "domains.recheck";
const everyMs = 30_000;
/** Interval for verified and failed names; pending ones are checked more often. */
const settledMs = 10 * 60_000;
const unsettledMs = 60_000;
const looksAtOnce = 8;
/** Maximum of names checked in one round. */
const maxDue = 200;

/** Only one such job exists, however often it is queued. */
export function scheduleRecheck({ jobs, db, clock }: Needs): Promise<void> {
  const runAt = new Date(clock.now().getTime() + everyMs);
  return jobs.add(db, recheckTask, {}, { key: recheckTask, runAt });
}

export async function recheck(app: Needs): Promise<void> {
  try {
    await checkDue(app);
  } catch (error) {
    app.log.warn({ error }, "checking custom domains failed; the next round retries");
  }
  await scheduleRecheck(app);
}

/** Checks each domain that is due, at most once. */
export async function checkDue(app: Needs): Promise<void> {
  const now = app.clock.now().getTime();
  const since = { settled: new Date(now - settledMs), unsettled: new Date(now - unsettledMs) };
  const due = await listDue(app.db, since, maxDue);
  const places = new Semaphore(looksAtOnce);
  await Promise.all(due.map((row) => places.run(() => checkAgain(app, row))));
}
