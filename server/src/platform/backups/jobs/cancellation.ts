/**
 * Ends each backup and restore at its deadline, when the server stops, when the workspace is suspended, or when the job
 * was deleted.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { BackupFailed } from "../errors.ts";

/** Thrown when the server stops or the workspace is suspended. The work starts again later. */
export class Interrupted extends Error {}
/** It was deleted, or its add-on was. */
export class Dropped extends Error {}

/** For the largest size on a slow host, several times over. */
const deadlineMs = 6 * 60 * 60_000;
const lookEveryMs = 1_000;
export const attemptsMax = 3;
export const gaveUp = `The server ended ${attemptsMax} times while this was under way; it is not tried again.`;

/** `hold`: the workspace is suspended and its database is frozen. */
export type Wish = "go on" | "gone" | "hold";

export async function within<T>(
  stops: AbortSignal,
  wish: () => Promise<Wish>,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const ends = new AbortController();
  // What is kept before a restore ends for the reason the restore ends for.
  const isOurs = () => stops.reason instanceof Dropped || stops.reason instanceof BackupFailed;
  const stop = () => ends.abort(isOurs() ? stops.reason : new Interrupted("the server stops"));
  stops.addEventListener("abort", stop, { once: true });
  if (stops.aborted) stop();
  const hours = deadlineMs / 3_600_000;
  const deadline = setTimeout(
    () => ends.abort(new BackupFailed(`It was not done within ${hours} hours.`)),
    deadlineMs,
  );
  const watched = new AbortController();
  const watching = watch(wish, ends, watched.signal);
  try {
    return await work(ends.signal);
  } catch (error) {
    // Some waits tell that they were aborted, and not why.
    throw ends.signal.aborted ? ends.signal.reason : error;
  } finally {
    clearTimeout(deadline);
    stops.removeEventListener("abort", stop);
    watched.abort();
    await watching;
  }
}

async function watch(wish: () => Promise<Wish>, ends: AbortController, signal: AbortSignal): Promise<void> {
  while (!signal.aborted && !ends.signal.aborted) {
    await sleep(lookEveryMs, undefined, { signal, ref: false }).catch(() => {});
    if (signal.aborted) return;
    // While PostgreSQL is away nobody can wish for anything.
    const wished = await wish().catch(() => "go on" as const);
    if (wished === "gone") ends.abort(new Dropped("it is wanted no more"));
    if (wished === "hold") ends.abort(new Interrupted("its workspace is suspended"));
  }
}
