/**
 * What `receive-pack` answers, taken apart (gitprotocol-pack, "report status" and "side-band"): progress goes to the
 * pusher as it comes, the report only once what was pushed is dealt with, and what a deployment says follows it, as the
 * output of a hook would. A client that wants no side band gets the report alone.
 */

/** 4 hexadecimal digits of length, themselves included, and the payload. */
export function packet(payload: string | Buffer): Buffer {
  const bytes = Buffer.from(payload as string);
  return Buffer.concat([Buffer.from((bytes.length + 4).toString(16).padStart(4, "0")), bytes]);
}

const flush = Buffer.from("0000");
const reportBand = 1;
const progressBand = 2;

/** Old clients take 1,000 bytes at once. */
const messageMaxBytes = 900;

/** Nothing, in a band: the pusher sees that we are still there. */
export const keepAlive = packet(Buffer.from([reportBand]));

/** Sequences that move a cursor or colour a line, and every control character but tab and newline. */
// oxlint-disable-next-line no-control-regex -- a terminal obeys them
const escapes = /\u001b\[[0-9;?]*[ -/]*[@-~]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** Text for the pusher's terminal, each line of it behind `remote: `. What could move its cursor is taken out. */
export function message(text: string): Buffer {
  const plain = text.toWellFormed().replaceAll(escapes, "");
  const bytes = Buffer.from(plain);
  const packets: Buffer[] = [];
  for (let from = 0; from < bytes.length; from += messageMaxBytes) {
    const band = Buffer.from([progressBand]);
    packets.push(packet(Buffer.concat([band, bytes.subarray(from, from + messageMaxBytes)])));
  }
  return Buffer.concat(packets);
}

/** More than a report of every ref a push may carry. */
const reportMaxBytes = 32 * 1024 ** 2;

export class Report {
  #bytes = Buffer.alloc(0);
  readonly #held: Buffer[] = [];
  #heldBytes = 0;
  /** Undefined until the first packet says. */
  #isBanded: boolean | undefined;

  /** Whether the client hears messages. */
  get isBanded(): boolean {
    return this.#isBanded === true;
  }

  /** Takes a piece of the answer, and gives back what may go on to the pusher at once. */
  take(piece: Buffer): Buffer {
    this.#bytes = Buffer.concat([this.#bytes, piece]);
    const passed: Buffer[] = [];
    for (let one = this.#next(); one !== undefined; one = this.#next()) {
      // The flush that ends a banded answer is written by whoever ends it.
      if (one.length === 4) {
        if (this.#isBanded === false) this.#hold(one);
        continue;
      }
      const band = one[4];
      this.#isBanded ??= band === reportBand || band === progressBand;
      if (this.#isBanded && (band !== reportBand || one.length === 5)) passed.push(one);
      else this.#hold(one);
    }
    return Buffer.concat(passed);
  }

  /** What was held back. */
  report(): Buffer {
    return Buffer.concat([...this.#held, this.#bytes]);
  }

  /** What ends the answer. */
  end(): Buffer {
    return this.isBanded ? flush : Buffer.alloc(0);
  }

  #hold(one: Buffer): void {
    this.#held.push(one);
    this.#heldBytes += one.length;
    if (this.#heldBytes > reportMaxBytes) throw new Error("the report of a push is too long");
  }

  #next(): Buffer | undefined {
    if (this.#bytes.length < 4) return undefined;
    const length = Number.parseInt(this.#bytes.toString("latin1", 0, 4), 16);
    if (Number.isNaN(length)) throw new Error("git answered no packet");
    const whole = Math.max(length, 4);
    if (this.#bytes.length < whole) return undefined;
    const one = this.#bytes.subarray(0, whole);
    this.#bytes = this.#bytes.subarray(whole);
    return one;
  }
}
