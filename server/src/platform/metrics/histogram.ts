/**
 * Histogram of latencies: exact below 64 µs, then 32 classes per doubling, so that percentiles differ by at most 1.6 %.
 * Histograms of minutes, processes and hosts are added before percentiles are read; percentiles cannot be averaged. A
 * stored minute of an environment takes about 100 bytes.
 */

const perDoubling = 32;
/** Microseconds below which each has a class of its own. */
const exactBelow = 2 * perDoubling;
/** Longest latency in microseconds, about 35 minutes. A longer latency counts as the longest. */
const maxUs = 2 ** 31 - 1;
const classes = classOf(maxUs) + 1;

export class Histogram {
  readonly #counts = new Uint32Array(classes);

  /** Counts a latency in milliseconds. Allocates no memory, because it runs for each request. */
  add(ms: number): void {
    this.#counts[classOf(Math.min(maxUs, Math.max(0, Math.round(ms * 1000))))]! += 1;
  }

  /** Adds a histogram in the form of `toBytes`. Throws a RangeError for malformed bytes. */
  addBytes(bytes: Uint8Array): void {
    let at = 0;
    const next = (): number => {
      let value = 0;
      for (let scale = 1; ; scale *= 128) {
        const byte = bytes[at];
        if (byte === undefined || scale > 2 ** 35) throw new RangeError("the histogram is truncated");
        at += 1;
        value += (byte & 127) * scale;
        if (byte < 128) return value;
      }
    };
    let index = -1;
    while (at < bytes.length) {
      index += next();
      if (index >= classes) throw new RangeError("the histogram has too many classes");
      this.#counts[index]! += next();
    }
  }

  /**
   * Returns, for each non-empty class, the distance from the previous one and the count. Both are written to base 128,
   * lowest digits first.
   */
  toBytes(): Buffer {
    const bytes: number[] = [];
    const writeNumber = (value: number): void => {
      let rest = value;
      for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
      bytes.push(rest);
    };
    let before = -1;
    for (const [index, count] of this.#counts.entries()) {
      if (count === 0) continue;
      writeNumber(index - before);
      writeNumber(count);
      before = index;
    }
    return Buffer.from(bytes);
  }

  /**
   * Returns a percentile in milliseconds, by nearest rank: half of the responses took at most `percentile(50)`. Null if
   * the histogram is empty.
   */
  percentile(percent: number): number | null {
    const total = this.#counts.reduce((sum, count) => sum + count, 0);
    if (total === 0) return null;
    let left = Math.max(1, Math.ceil((percent / 100) * total));
    const index = this.#counts.findIndex((count) => (left -= count) <= 0);
    return Math.round(middleOf(index) / 10) / 100;
  }
}

function classOf(us: number): number {
  if (us < exactBelow) return us;
  const shift = 26 - Math.clz32(us);
  return shift * perDoubling + (us >> shift);
}

function middleOf(index: number): number {
  if (index < exactBelow) return index;
  const shift = Math.floor(index / perDoubling) - 1;
  const lowest = (perDoubling + (index % perDoubling)) * 2 ** shift;
  return lowest + 2 ** shift / 2;
}
