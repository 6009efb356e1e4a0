/** Writes a build's log to its table: complete pieces, a few per second, up to a limit. */
import type { App } from "#app.ts";
import { appendLog } from "./store.ts";

/** Limit of one build's log in bytes; further output is dropped. */
export const logMaxBytes = 4 * 1024 ** 2;
/** Longest delay in milliseconds before output is stored. A build with much output writes a piece per interval. */
const flushAfterMs = 250;
const pieceBytes = 64 * 1024;
/** Characters of last output that the reason of a failure contains, even past the log's limit. */
const lastChars = 2000;

export class BuildLog {
  readonly #app: Pick<App, "db" | "clock">;
  readonly #build: string;
  #step = 0;
  #text = "";
  #last = "";
  #bytes = 0;
  #isFull = false;
  #decoder = new TextDecoder();
  #flushing: Promise<void> = Promise.resolve();
  #isDue = false;

  constructor(app: Pick<App, "db" | "clock">, build: string) {
    this.#app = app;
    this.#build = build;
  }

  /** The last output of the current step. */
  get last(): string {
    return this.#last.trim();
  }

  async begin(step: number, headline: string): Promise<void> {
    await this.flush();
    this.#step = step;
    this.#last = "";
    this.#decoder = new TextDecoder();
    this.#add(headline);
    await this.flush();
  }

  /** Adds output to the log. Waits while much output is not stored yet. */
  async write(data: Buffer): Promise<void> {
    const text = this.#decoder.decode(data, { stream: true }).replaceAll("\0", "�");
    this.#last = (this.#last + text).slice(-lastChars);
    this.#add(text);
    if (this.#text.length >= pieceBytes) await this.flush();
    else if (this.#text !== "") this.#flushSoon();
  }

  async flush(): Promise<void> {
    const text = this.#text;
    this.#text = "";
    if (text === "") return this.#flushing;
    const piece = { step: this.#step, at: this.#app.clock.now(), text, truncated: this.#isFull };
    this.#flushing = this.#flushing.then(() => appendLog(this.#app.db, this.#build, piece));
    return this.#flushing;
  }

  #add(text: string): void {
    if (this.#isFull) return;
    this.#bytes += Buffer.byteLength(text);
    this.#isFull = this.#bytes > logMaxBytes;
    this.#text += this.#isFull ? "\n(more output is not kept)\n" : text;
  }

  #flushSoon(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    setTimeout(() => {
      this.#isDue = false;
      // A database outage also fails the build's own queries, which report it.
      this.flush().catch(() => {});
    }, flushAfterMs).unref();
  }
}
