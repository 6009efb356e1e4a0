/** A stream for two readers, of which nothing is kept: the one that is ahead waits for the other. */
import { unlessEnded } from "./unless-ended.ts";

type Next = IteratorResult<Buffer>;

/**
 * To be called once by each of the two, with what ends it: the same pieces for both, at the pace of the slower. One
 * that stops early holds up nobody; where both have begun and stopped, the content is let go of.
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
  const take = async (signal: AbortSignal): Promise<Next> => {
    const { promise } = round;
    waiting += 1;
    goOn();
    try {
      return await unlessEnded(promise, signal);
    } catch (error) {
      // It waits no more: the other one's next piece is not to come before that one asks for it.
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
