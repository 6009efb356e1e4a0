const logMaxBytes = 4 * 1024 ** 2;
const lastChars = 4000;

/** Passes a build's output to its log in order, up to a limit. */
export class Output {
  readonly #log: (text: string) => void | Promise<void>;
  #last = "";
  #bytes = 0;
  #written: Promise<void> = Promise.resolve();

  constructor(log: (text: string) => void | Promise<void>) {
    this.#log = log;
  }

  get last(): string {
    return this.#last.trim();
  }

  write(text: string): void {
    this.#last = (this.#last + text).slice(-lastChars);
    if (this.#bytes > logMaxBytes) return;
    this.#bytes += Buffer.byteLength(text);
    this.#hand(this.#bytes > logMaxBytes ? "(more output is not kept)\n" : text);
  }

  /** Resolves when all output is in the log. Rejects if a write failed. */
  flushed(): Promise<void> {
    return this.#written;
  }

  #hand(text: string): void {
    this.#written = this.#written.then(() => this.#log(text));
    // `flushed` rejects with the same error.
    this.#written.catch(() => {});
  }
}
