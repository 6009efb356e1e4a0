/** Splits a stream for two readers without a buffer: the faster reader waits for the slower. */
import { abortable } from "../concurrency/abortable.ts";

type Next = IteratorResult<Buffer>;

/**
 * Each of the two readers calls the returned function once, with its abort signal. Both readers get the same pieces, at
 * the pace of the slower reader. A reader that stops early does not block the other. The source is closed after both
 * readers have stopped.
 */
export function tee(content: AsyncIterable<Buffer>): (signal: AbortSignal) => AsyncGenerator<Buffer> {
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
  const take = async (signal: AbortSignal): Promise<Next> => {
    const { promise } = round;
    waiting += 1;
    goOn();
    try {
      return await abortable(promise, signal);
    } catch (error) {
      // This reader does not wait any more. The next piece must not be read before the other reader needs it.
      if (round.promise === promise) waiting -= 1;
      throw error;
    }
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
