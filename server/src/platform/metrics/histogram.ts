/**
 * How long answers took, as counts by size: exact below 64 µs, then 32 classes for each doubling, so that what is read
 * from it is off by 1.6 % at most. Histograms of minutes, processes and hosts are added up and then asked for
 * percentiles; percentiles themselves cannot be averaged. Stored, a minute of one environment takes some 100 bytes.
 */

const perDoubling = 32;
/** Below this each microsecond is a class of its own. */
const exactBelow = 2 * perDoubling;
/** 35 minutes: what takes longer counts as that. */
const maxUs = 2 ** 31 - 1;
export const classes = classOf(maxUs) + 1;

export class Histogram {
  readonly #counts = new Uint32Array(classes);

  /** Nothing is allocated here: it is called for each request. */
  add(ms: number): void {
    this.#counts[classOf(Math.min(maxUs, Math.max(0, Math.round(ms * 1000))))]! += 1;
  }

  /** Adds up what `toBytes` wrote. Throws a RangeError where it is nothing of ours. */
  addBytes(bytes: Uint8Array): void {
    let at = 0;
    const next = (): number => {
      let value = 0;
      for (let scale = 1; ; scale *= 128) {
        const byte = bytes[at];
        if (byte === undefined || scale > 2 ** 35) throw new RangeError("a histogram is cut off");
        at += 1;
        value += (byte & 127) * scale;
        if (byte < 128) return value;
      }
    };
    let index = -1;
    while (at < bytes.length) {
      index += next();
      if (index >= classes) throw new RangeError("a histogram has too many classes");
      this.#counts[index]! += next();
    }
  }

  /** Of the classes that hold something: how far on each is, and its count; both in base 128, lowest digits first. */
  toBytes(): Buffer {
    const bytes: number[] = [];
    const put = (value: number): void => {
      let rest = value;
      for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
      bytes.push(rest);
    };
    let before = -1;
    for (const [index, count] of this.#counts.entries()) {
      if (count === 0) continue;
      put(index - before);
      put(count);
      before = index;
    }
    return Buffer.from(bytes);
  }

  /** Milliseconds by nearest rank: half of the answers took no longer than `percentile(50)`. Null where there is none. */
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
