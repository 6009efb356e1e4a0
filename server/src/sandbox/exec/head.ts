/** The beginning of a stream, up to a number of bytes; what comes after is counted out and dropped. */
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

  /** As UTF-8; bytes that are not become U+FFFD. */
  text(): string {
    return Buffer.concat(this.#chunks, this.#size).toString("utf8");
  }
}
