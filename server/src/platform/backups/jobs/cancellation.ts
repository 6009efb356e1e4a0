/**
 * Aborts a backup or restore at its deadline, when the server stops, when the workspace is suspended, or when the job
 * was deleted.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { BackupFailed } from "../errors.ts";

/** Thrown when the server stops or the workspace is suspended. The work starts again later. */
export class Interruption extends Error {}
/** Thrown when the backup, restore or add-on was deleted. */
export class JobDeleted extends Error {}

/** Deadline of a job, several times the time that the largest size takes on a slow host. */
const deadlineMs = 6 * 60 * 60_000;
const lookEveryMs = 1_000;
export const attemptsMax = 3;
export const retriesExhausted = `The server ended ${attemptsMax} times during this job; it is not retried.`;

/** Decision about a running job. `suspend`: the workspace is suspended, so its database is frozen. */
export type JobDecision = "continue" | "cancel" | "suspend";

export async function runCancellable<T>(
  stops: AbortSignal,
  decide: () => Promise<JobDecision>,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const ends = new AbortController();
  // With any other reason, the server stops. A safety backup ends with its restore, for the reason of the restore.
  const isOurs = () => stops.reason instanceof JobDeleted || stops.reason instanceof BackupFailed;
  const stop = () => ends.abort(isOurs() ? stops.reason : new Interruption("the server stops"));
  stops.addEventListener("abort", stop, { once: true });
  if (stops.aborted) stop();
  const hours = deadlineMs / 3_600_000;
  const deadline = setTimeout(
    () => ends.abort(new BackupFailed(`It did not finish within ${hours} hours.`)),
    deadlineMs,
  );
  const watched = new AbortController();
  const watching = watch(decide, ends, watched.signal);
  try {
    return await work(ends.signal);
  } catch (error) {
    // Some rejections only report the abort, so the error is replaced by the abort's reason.
    throw ends.signal.aborted ? ends.signal.reason : error;
  } finally {
    clearTimeout(deadline);
    stops.removeEventListener("abort", stop);
    watched.abort();
    await watching;
  }
}

async function watch(
  decide: () => Promise<JobDecision>,
  ends: AbortController,
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted && !ends.signal.aborted) {
    await sleep(lookEveryMs, undefined, { signal, ref: false }).catch(() => {});
    if (signal.aborted) return;
    // The work continues while PostgreSQL is down.
    const decision = await decide().catch(() => "continue" as const);
    if (decision === "cancel") ends.abort(new JobDeleted("the job was deleted"));
    if (decision === "suspend") ends.abort(new Interruption("the workspace is suspended"));
  }
}
