/** Keeps the head and the tail of a long text, because these parts matter most. */
export class HeadAndTail {
  readonly #eachBytes: number;
  #head = Buffer.alloc(0);
  #tail = Buffer.alloc(0);
  #size = 0;

  constructor(maxBytes: number) {
    this.#eachBytes = Math.floor(maxBytes / 2);
  }

  add(chunk: Buffer): void {
    this.#size += chunk.length;
    const room = Math.min(chunk.length, this.#eachBytes - this.#head.length);
    if (room > 0) this.#head = Buffer.concat([this.#head, chunk.subarray(0, room)]);
    const rest = chunk.subarray(Math.max(0, room));
    if (rest.length === 0) return;
    const last = rest.subarray(Math.max(0, rest.length - this.#eachBytes));
    const kept = this.#tail.subarray(Math.max(0, this.#tail.length + last.length - this.#eachBytes));
    this.#tail = Buffer.concat([kept, last]);
  }

  get isEmpty(): boolean {
    return this.#size === 0;
  }

  /** Returns UTF-8 text with a note about the omitted middle. Invalid bytes become U+FFFD. */
  text(): string {
    const left = this.#size - this.#head.length - this.#tail.length;
    if (left === 0) return Buffer.concat([this.#head, this.#tail]).toString("utf8");
    return `${this.#head.toString("utf8")}\n[${left} bytes left out]\n${this.#tail.toString("utf8")}`;
  }
}
