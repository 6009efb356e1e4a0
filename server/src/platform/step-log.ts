/**
 * Writes the output of a deploy to a table, in complete pieces, a few times a second, with a limit for each step. Apps
 * and functions have separate log tables and share this writer and follower.
 */
import type { App } from "#app.ts";
import { readWatched, type Watch } from "#lib/watcher.ts";

/** Output beyond the limit is dropped, and the log notes it. Each step has its own limit. */
const maxBytesOf = (step: string): number => (step === "build" ? 4 * 1024 ** 2 : 256 * 1024);
/** Longest delay before output is written. A chatty build writes at this rate. */
const flushAfterMs = 100;
/** A writer waits while this much output is not yet written. */
const pieceChars = 64 * 1024;
/** Characters kept for the reason of a failure, also past the log's limit. */
const lastChars = 16 * 1024;

/** Polling interval of followers. A notification for each piece would slow down other commits. */
export const lookEveryMs = 150;
const piecesAtOnce = 100;

export interface StepLogPiece<Step extends string> {
  step: Step;
  at: Date;
  text: string;
}

/** `isCut`: part of the build's output was dropped. */
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

  /** Returns the last lines of a step's output. */
  last(step: Step, lines: number): string {
    return (this.#last.get(step) ?? "").trimEnd().split("\n").slice(-lines).join("\n");
  }

  /** Adds complete lines. The final newline may be missing. */
  async append(step: Step, lines: string): Promise<void> {
    if (lines === "") return;
    // PostgreSQL stores neither NUL nor a lone surrogate.
    const text = (lines.endsWith("\n") ? lines : `${lines}\n`).replaceAll("\0", "�").toWellFormed();
    this.#last.set(step, ((this.#last.get(step) ?? "") + text).slice(-lastChars));
    this.#add(step, text);
    if (this.#chars >= pieceChars) await this.flush();
    else if (this.#chars > 0) this.#flushSoon();
  }

  /** Writes all output to the table. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const pieces = this.#pieces;
    this.#pieces = [];
    this.#chars = 0;
    if (pieces.length > 0) {
      const isCut = this.#isBuildCut;
      const write = () => this.#write(pieces, isCut);
      // The waiting caller got the error of a failed write. The next write is tried anyway.
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
      // The deployment's own queries report a missing database.
      this.flush().catch(() => {});
    }, flushAfterMs).unref();
  }
}

/** A new piece of a followed log, or a change of state. A follower resumes from `seq`. */
export type LogNews<Step extends string, Status extends string> =
  | ({ seq: number } & StepLogPiece<Step>)
  | { seq: number; status: Status; error: string | null };

/** A growing log: its pieces after a sequence number, and the state of its deploy. */
export interface LogSource<Step extends string, Status extends string> {
  /** Watches the deploy's row. All readers share the watch and its reads. */
  watch(): Watch<never>;
  /** Undefined if the deploy is deleted. */
  state(): Promise<{ status: Status; error: string | null } | undefined>;
  isOver(status: Status): boolean;
  after(seq: number, limit: number): Promise<({ seq: number } & StepLogPiece<Step>)[]>;
}

/** Yields pieces and states after `after`, until the deploy ends or is deleted. */
export async function* followLog<Step extends string, Status extends string>(
  source: LogSource<Step, Status>,
  signal: AbortSignal,
  after = 0,
): AsyncGenerator<LogNews<Step, Status>> {
  let seq = after;
  let told: Status | undefined;
  const read = async (from: number) => {
    // The state is read first, so that the pieces read after an end are complete.
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
