/** Waits for a promise that may never settle. Rejects with the signal's reason if the signal aborts first. */
export async function abortable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: ended, reject } = Promise.withResolvers<never>();
  const stop = () => reject(signal.reason);
  signal.addEventListener("abort", stop, { once: true });
  if (signal.aborted) stop();
  try {
    return await Promise.race([promise, ended]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}
