/** Work that is only good as a whole: done at the same time, and ended together where one part fails. */

/**
 * All of it at once; answers what each came out with. The first part that fails ends the others by their signal, and its
 * error is thrown when all have ended: nothing is under way any more then.
 */
export async function together<T extends readonly unknown[]>(
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
  // The first error, whichever part it was of.
  failed.signal.throwIfAborted();
  return results.map((result) => (result as PromiseFulfilledResult<unknown>).value) as unknown as T;
}
