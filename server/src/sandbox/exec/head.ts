/** Keeps the first bytes of a stream, up to a limit; counts and drops the rest. */
export class Head {
  readonly #limit: number;
  readonly #chunks: Buffer[] = [];
  #size = 0;
  truncated = false;

  constructor(limitBytes: number) {
    this.#limit = limitBytes;
  }

  add(chunk: Buffer): void {
    const room = this.#limit - this.#size;
    if (chunk.length > room) this.truncated = true;
    if (room <= 0) return;
    const kept = chunk.length > room ? chunk.subarray(0, room) : chunk;
    this.#chunks.push(kept);
    this.#size += kept.length;
  }

  /** Returns the kept bytes as UTF-8 text; invalid bytes become U+FFFD. */
  text(): string {
    return Buffer.concat(this.#chunks, this.#size).toString("utf8");
  }
}
