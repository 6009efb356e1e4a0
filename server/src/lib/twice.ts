/** A stream for two readers, of which nothing is kept: the one that is ahead waits for the other. */

type Next = IteratorResult<Buffer>;

/**
 * To be called once by each of the two, with what ends it: the same pieces for both, at the pace of the slower. One
 * that stops early holds up nobody; where both have stopped, the content is let go of.
 */
export function twice(content: AsyncIterable<Buffer>): (signal: AbortSignal) => AsyncGenerator<Buffer> {
  const source = content[Symbol.asyncIterator]();
  let round = Promise.withResolvers<Next>();
  let readers = 2;
  let waiting = 0;

  const goOn = () => {
    if (readers === 0) return void source.return?.();
    if (waiting < readers) return;
    const { resolve, reject } = round;
    round = Promise.withResolvers();
    waiting = 0;
    source.next().then(resolve, reject);
  };
  const take = (signal: AbortSignal): Promise<Next> => {
    const { promise } = round;
    waiting += 1;
    goOn();
    return unlessEnded(promise, signal);
  };
  return async function* (signal) {
    try {
      for (let next = await take(signal); !next.done; next = await take(signal)) yield next.value;
    } finally {
      readers -= 1;
      goOn();
    }
  };
}

async function unlessEnded<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
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
