/**
 * The output of a deploy on its way to a table: whole pieces, a few writes a second, a limit for each step. Apps and
 * functions keep their logs in tables of their own and share the writer and the follower.
 */
import type { App } from "#app.ts";
import { readWatched, type Watch } from "#lib/watcher.ts";

/** Output beyond this is dropped, and the log says so. The end of an app that failed has room after a long build. */
const maxBytesOf = (step: string): number => (step === "build" ? 4 * 1024 ** 2 : 256 * 1024);
/** A reader sees output this late at most; a write each time is what a chatty build costs the database. */
const flushAfterMs = 100;
/** Whoever writes waits while so much is on its way. */
const pieceChars = 64 * 1024;
/** Kept for the reason of a failure, also of what the log has no room for. */
const lastChars = 16 * 1024;

/** A reader is this late at most; a notice for each piece would cost every other commit more. */
export const lookEveryMs = 150;
const piecesAtOnce = 100;

export interface StepLogPiece<Step extends string> {
  step: Step;
  at: Date;
  text: string;
}

/** `isCut`: a part of the build's output is dropped. */
type Write<Step extends string> = (pieces: readonly StepLogPiece<Step>[], isCut: boolean) => Promise<void>;

export class StepLog<Step extends string> {
  readonly #clock: App["clock"];
  readonly #write: Write<Step>;
  readonly #bytes = new Map<Step, number>();
  readonly #last = new Map<Step, string>();
  #pieces: StepLogPiece<Step>[] = [];
  #chars = 0;
  #isBuildCut = false;
  #flushing: Promise<void> = Promise.resolve();
  #timer: NodeJS.Timeout | undefined;

  constructor({ clock }: Pick<App, "clock">, write: Write<Step>) {
    this.#clock = clock;
    this.#write = write;
  }

  /** The end of what a step said. */
  last(step: Step, lines: number): string {
    return (this.#last.get(step) ?? "").trimEnd().split("\n").slice(-lines).join("\n");
  }

  /** Whole lines; the last one's end may be left out. */
  async say(step: Step, lines: string): Promise<void> {
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
      const write = () => this.#write(pieces, isCut);
      // A write that failed was told to whoever waited for it; the next is tried all the same.
      this.#flushing = this.#flushing.then(write, write);
    }
    await this.#flushing;
  }

  #add(step: Step, text: string): void {
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
    else this.#pieces.push({ step, at: this.#clock.now(), text: kept });
    this.#chars += kept.length;
  }

  #flushSoon(): void {
    this.#timer ??= setTimeout(() => {
      // That the database is away is told by the deployment's own calls.
      this.flush().catch(() => {});
    }, flushAfterMs).unref();
  }
}

/** The end of a log that is followed, or a change of state: `seq` is where a follower resumes. */
export type LogNews<Step extends string, Status extends string> =
  | ({ seq: number } & StepLogPiece<Step>)
  | { seq: number; status: Status; error: string | null };

/** A log that grows: its pieces behind a number, and the state of the deploy that writes it. */
export interface LogSource<Step extends string, Status extends string> {
  /** Readers of one deploy share the watch of its row, and their reads. */
  watch(): Watch<never>;
  /** Undefined once the deploy is deleted. */
  state(): Promise<{ status: Status; error: string | null } | undefined>;
  isOver(status: Status): boolean;
  after(seq: number, limit: number): Promise<({ seq: number } & StepLogPiece<Step>)[]>;
}

/** Pieces and states behind `after`, until the deploy ends or is deleted. */
export async function* followLog<Step extends string, Status extends string>(
  source: LogSource<Step, Status>,
  signal: AbortSignal,
  after = 0,
): AsyncGenerator<LogNews<Step, Status>> {
  let seq = after;
  let told: Status | undefined;
  const read = async (from: number) => {
    // First: pieces that are read after a deploy's end are complete.
    const state = await source.state();
    if (!state) return undefined;
    const pieces = await source.after(from, piecesAtOnce);
    return { state, pieces, isAll: pieces.length < piecesAtOnce };
  };
  for await (const page of readWatched(source.watch(), { place: () => seq, read, signal })) {
    for (const { seq: number, step, at, text } of page.pieces) {
      seq = number;
      yield { seq, step, at, text };
    }
    if (!page.isAll) continue;
    const { status, error } = page.state;
    if (status !== told) yield { seq, status, error };
    told = status;
    if (source.isOver(status)) return;
  }
}
