/**
 * Writes the output of a deploy to a table in complete pieces, a few times a second, with a limit for each step. Apps
 * and functions have separate log tables, and share this writer and follower.
 */
import type { App } from "#app.ts";
import { readWatched, type Watch } from "#lib/watcher.ts";

/** Limit of a step's stored output in bytes. Further output is dropped, and the log contains a note of it. */
const maxBytesOf = (step: string): number => (step === "build" ? 4 * 1024 ** 2 : 256 * 1024);
/** Longest delay before output is stored, in milliseconds. A build with much output writes at this interval. */
const flushAfterMs = 100;
/** Characters of unstored output from which on a writer waits. */
const pieceChars = 64 * 1024;
/** Characters of last output that the reason of a failure contains, even past the log's limit. */
const lastChars = 16 * 1024;

/** Polling interval of followers in milliseconds. A notification for each piece would slow down other commits. */
export const lookEveryMs = 150;
const piecesAtOnce = 100;

export interface StepLogPiece<Step extends string> {
  step: Step;
  at: Date;
  text: string;
}

/** Stores pieces of a log. `isCut`: part of the build's output was dropped. */
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

  /** Adds complete lines. The last newline may be missing. */
  async append(step: Step, lines: string): Promise<void> {
    if (lines === "") return;
    // PostgreSQL stores neither NUL nor a lone surrogate.
    const text = (lines.endsWith("\n") ? lines : `${lines}\n`).replaceAll("\0", "�").toWellFormed();
    this.#last.set(step, ((this.#last.get(step) ?? "") + text).slice(-lastChars));
    this.#add(step, text);
    if (this.#chars >= pieceChars) await this.flush();
    else if (this.#chars > 0) this.#flushSoon();
  }

  /** Resolves when all output is in the table. */
  async flush(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const pieces = this.#pieces;
    this.#pieces = [];
    this.#chars = 0;
    if (pieces.length > 0) {
      const isCut = this.#isBuildCut;
      const write = () => this.#write(pieces, isCut);
      // The caller of a failed write got its error. The next write is tried anyway.
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
      // A database outage also fails the deployment's own queries, which report it.
      this.flush().catch(() => {});
    }, flushAfterMs).unref();
  }
}

/** An event of a followed log: a new piece, or a change of state. A follower resumes from `seq`. */
export type LogNews<Step extends string, Status extends string> =
  | ({ seq: number } & StepLogPiece<Step>)
  | { seq: number; status: Status; error: string | null };

/** A log that grows: its pieces after a sequence number, and the state of its deploy. */
export interface LogSource<Step extends string, Status extends string> {
  /** Watches the deploy's row. All followers share the watch and its queries. */
  watch(): Watch<never>;
  /** Returns the deploy's state; undefined if the deploy is deleted. */
  state(): Promise<{ status: Status; error: string | null } | undefined>;
  isOver(status: Status): boolean;
  after(seq: number, limit: number): Promise<({ seq: number } & StepLogPiece<Step>)[]>;
}

/** Yields pieces and states from `after` on, until the deploy ends or is deleted. */
export async function* followLog<Step extends string, Status extends string>(
  source: LogSource<Step, Status>,
  signal: AbortSignal,
  after = 0,
): AsyncGenerator<LogNews<Step, Status>> {
  let seq = after;
  let told: Status | undefined;
  const read = async (from: number) => {
    // The state is read before the pieces. After an end, no piece is missing.
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
