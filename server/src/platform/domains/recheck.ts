/**
 * Checks custom domains repeatedly. A single job checks the domains that are due, and queues itself for the next round.
 * So one of several servers does the checks, and another continues if that server dies.
 */
import type { App } from "#app.ts";
import { Semaphore } from "#lib/concurrency/semaphore.ts";
import { checkAgain } from "./domains.ts";
import { listDue } from "./store.ts";

type Needs = Pick<App, "db" | "clock" | "config" | "jobs" | "log">;

export const recheckTask = "domains.recheck";
const everyMs = 30_000;
/** Milliseconds between checks of verified and failed names. Pending names are checked more often. */
const settledMs = 10 * 60_000;
const unsettledMs = 60_000;
const looksAtOnce = 8;
/** Limit of names that one round checks. */
const maxDue = 200;

/** Queues the next round. Only one such job exists, however often this function is called. */
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

/** Checks each domain that is due once. */
export async function checkDue(app: Needs): Promise<void> {
  const now = app.clock.now().getTime();
  const since = { settled: new Date(now - settledMs), unsettled: new Date(now - unsettledMs) };
  const due = await listDue(app.db, since, maxDue);
  const places = new Semaphore(looksAtOnce);
  await Promise.all(due.map((row) => places.run(() => checkAgain(app, row))));
}
