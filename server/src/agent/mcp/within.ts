/** Nothing that a server does is waited for without end. */

export class TookTooLong extends Error {
  override readonly name = "TookTooLong";
}

/** What is late is left alone: whoever waits goes on. */
export async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  work.catch(() => {});
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new TookTooLong(`no answer within ${ms / 1000} s`)), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Throws what the signal was aborted with as soon as it is. */
export async function unlessAborted<T>(signal: AbortSignal, work: Promise<T>): Promise<T> {
  work.catch(() => {});
  const stop = Promise.withResolvers<never>();
  const abort = () => stop.reject(signal.reason as Error);
  signal.addEventListener("abort", abort, { once: true });
  if (signal.aborted) abort();
  try {
    return await Promise.race([work, stop.promise]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}
