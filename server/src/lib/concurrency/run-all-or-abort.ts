/** Runs tasks that are useful only together: all at the same time, and all end if one fails. */

/**
 * Runs all tasks at once and returns their results. The first failure aborts the other tasks. The call rejects with
 * this error after all tasks have ended, so none is still running.
 */
export async function runAllOrAbort<T extends readonly unknown[]>(
  signal: AbortSignal,
  ...works: { [K in keyof T]: (ends: AbortSignal) => Promise<T[K]> }
): Promise<T> {
  const failed = new AbortController();
  const ends = AbortSignal.any([signal, failed.signal]);
  const results = await Promise.allSettled(
    works.map(async (work) => {
      try {
        return await work(ends);
      } catch (error) {
        failed.abort(error);
        throw error;
      }
    }),
  );
  // Throws the first error of any task.
  failed.signal.throwIfAborted();
  return results.map((result) => (result as PromiseFulfilledResult<unknown>).value) as unknown as T;
}
