/** Deadlines for requests to a server. */

class DeadlineExceeded extends Error {
  override readonly name = "DeadlineExceeded";
}

/** Resolves to the result of `work`. Throws `DeadlineExceeded` after `ms` milliseconds, and ignores a later result. */
export async function withDeadline<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  work.catch(() => {});
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new DeadlineExceeded(`no response within ${ms / 1000} s`)), ms);
  });
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
