/** What a deployment says, on its way to the table: whole pieces, a few a second, so much of each step and no more. */
import type { App } from "#app.ts";
import type { StepName } from "./states.ts";
import { appendLog, type LogPiece } from "./store.ts";

/** What is said beyond is dropped, and the log says so. The end of an app that failed has room whatever its build said. */
const maxBytesOf = (step: StepName): number => (step === "build" ? 4 * 1024 ** 2 : 256 * 1024);
/** A reader sees output this late at most; a write each time is what a chatty build costs the database. */
const flushAfterMs = 100;
/** Whoever writes waits while so much is on its way. */
const pieceChars = 64 * 1024;
/** Kept for the reason of a failure, also of what the log has no room for. */
const lastChars = 16 * 1024;

export class DeploymentLog {
  readonly #app: Pick<App, "db" | "clock">;
  readonly #deployment: string;
  readonly #bytes = new Map<StepName, number>();
  readonly #last = new Map<StepName, string>();
  #pieces: LogPiece[] = [];
  #chars = 0;
  #isBuildCut = false;
  #flushing: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;

  constructor(app: Pick<App, "db" | "clock">, deployment: string) {
    this.#app = app;
    this.#deployment = deployment;
  }

  /** The end of what a step said. */
  last(step: StepName, lines: number): string {
    return (this.#last.get(step) ?? "").trimEnd().split("\n").slice(-lines).join("\n");
  }

  /** Whole lines; the last one's end may be left out. */
  async say(step: StepName, lines: string): Promise<void> {
    if (lines === "") return;
    // Neither is text to PostgreSQL.
    const text = (lines.endsWith("\n") ? lines : `${lines}\n`).replaceAll("\0", "�").toWellFormed();
    this.#last.set(step, ((this.#last.get(step) ?? "") + text).slice(-lastChars));
    this.#add(step, text);
    if (this.#chars >= pieceChars) await this.flush();
    else if (this.#chars > 0) this.#flushSoon();
  }

  /** Everything that was said is in the table when this returns. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const pieces = this.#pieces;
    this.#pieces = [];
    this.#chars = 0;
    if (pieces.length > 0) {
      const isCut = this.#isBuildCut;
      const write = () => appendLog(this.#app.db, this.#deployment, pieces, isCut);
      // A write that failed was told to whoever waited for it; the next is tried all the same.
      this.#flushing = this.#flushing.then(write, write);
    }
    await this.#flushing;
  }

  #add(step: StepName, text: string): void {
    const before = this.#bytes.get(step) ?? 0;
    const most = maxBytesOf(step);
    if (before > most) return;
    const after = before + Buffer.byteLength(text);
    this.#bytes.set(step, after);
    const isCut = after > most;
    if (isCut && step === "build") this.#isBuildCut = true;
    const kept = isCut ? `${text.slice(0, most - before)}\n(more output is not kept)\n` : text;
    const present = this.#pieces.at(-1);
    if (present?.step === step) present.text += kept;
    else this.#pieces.push({ step, at: this.#app.clock.now(), text: kept });
    this.#chars += kept.length;
  }

  #flushSoon(): void {
    this.#timer ??= setTimeout(() => {
      // That the database is away is told by the deployment's own calls.
      this.flush().catch(() => {});
    }, flushAfterMs).unref();
  }
}
