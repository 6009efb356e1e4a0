/**
 * Runs work side by side and answers when all of it has ended, also when some failed: unlike `Promise.all`, nothing is
 * still under way when the first failure is thrown, so that an undo does not race with what it undoes.
 */
export async function together<T extends readonly Promise<unknown>[]>(
  ...work: T
): Promise<{ -readonly [K in keyof T]: Awaited<T[K]> }> {
  for (const result of await Promise.allSettled(work)) {
    if (result.status === "rejected") throw result.reason;
  }
  return Promise.all(work);
}
