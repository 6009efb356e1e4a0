/**
 * Waits until all work has ended, even if some of it fails, and then throws the first failure. With `Promise.all`,
 * other work would still run after a failure, and an undo would race with it.
 */
export async function waitForAll<T extends readonly Promise<unknown>[]>(
  ...work: T
): Promise<{ -readonly [K in keyof T]: Awaited<T[K]> }> {
  for (const result of await Promise.allSettled(work)) {
    if (result.status === "rejected") throw result.reason;
  }
  return Promise.all(work);
}
