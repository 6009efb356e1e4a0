/**
 * Parses the response of `receive-pack` (gitprotocol-pack, "report status" and "side-band"). Progress is sent to the
 * pusher at once. The report is delayed until the new commits are handled. A deployment's log follows the report, like
 * the output of a hook. A client without side band gets the report alone.
 */

/** Returns a packet: four hexadecimal digits of its whole length, and the payload. */
function packet(payload: string | Buffer): Buffer {
  const bytes = Buffer.from(payload as string);
  return Buffer.concat([Buffer.from((bytes.length + 4).toString(16).padStart(4, "0")), bytes]);
}

const flush = Buffer.from("0000");
const reportBand = 1;
const progressBand = 2;

/** Limit of a message in bytes. Old clients accept packets of 1,000 bytes. */
const messageMaxBytes = 900;

/** Packet without content in a band, which keeps the connection alive. */
export const keepAlive = packet(Buffer.from([reportBand]));

/** Matches sequences that move the cursor or set a colour, and every control character except tab and newline. */
// oxlint-disable-next-line no-control-regex -- terminals execute these
const escapes = /\u001b\[[0-9;?]*[ -/]*[@-~]|[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/**
 * Returns packets with text for the pusher's terminal. Escape sequences are removed, and git prefixes each line with
 * `remote: `.
 */
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

/** Limit of a report in bytes, above a report of every ref that a push may contain. */
const reportMaxBytes = 32 * 1024 ** 2;

export class Report {
  #bytes = Buffer.alloc(0);
  readonly #heldBack: Buffer[] = [];
  #heldBytes = 0;
  /** True if the response has bands. Undefined until its first packet has arrived. */
  #isBanded: boolean | undefined;

  /** True if the client receives messages. */
  get isBanded(): boolean {
    return this.#isBanded === true;
  }

  /** Adds a chunk of the response. Returns the part that may be sent to the pusher at once. */
  take(piece: Buffer): Buffer {
    this.#bytes = Buffer.concat([this.#bytes, piece]);
    const passed: Buffer[] = [];
    for (let one = this.#next(); one !== undefined; one = this.#next()) {
      // This flush packet ends a banded response. The caller writes the packet later.
      if (one.length === 4) {
        if (this.#isBanded === false) this.#holdBack(one);
        continue;
      }
      const band = one[4];
      this.#isBanded ??= band === reportBand || band === progressBand;
      if (this.#isBanded && (band !== reportBand || one.length === 5)) passed.push(one);
      else this.#holdBack(one);
    }
    return Buffer.concat(passed);
  }

  /** Returns the delayed report. */
  report(): Buffer {
    return Buffer.concat([...this.#heldBack, this.#bytes]);
  }

  /** Returns the packet that ends the response. */
  end(): Buffer {
    return this.isBanded ? flush : Buffer.alloc(0);
  }

  #holdBack(one: Buffer): void {
    this.#heldBack.push(one);
    this.#heldBytes += one.length;
    if (this.#heldBytes > reportMaxBytes) throw new Error("the report of a push is too long");
  }

  #next(): Buffer | undefined {
    if (this.#bytes.length < 4) return undefined;
    const length = Number.parseInt(this.#bytes.toString("latin1", 0, 4), 16);
    if (Number.isNaN(length)) throw new Error("git sent an invalid packet");
    const whole = Math.max(length, 4);
    if (this.#bytes.length < whole) return undefined;
    const one = this.#bytes.subarray(0, whole);
    this.#bytes = this.#bytes.subarray(whole);
    return one;
  }
}
