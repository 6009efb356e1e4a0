/**
 * Progress of long work on a resource: a shape and a writer for deployments, functions and add-ons. The row stores the
 * progress, so that every reader sees the same. The owner of the row clears the progress when the work ends, and after
 * a restart.
 */
import { z } from "zod";

export interface Progress<Step extends string> {
  step: Step;
  /** Percent of the whole work, from 0 to 100. */
  percent: number;
  message: string;
}

/** Progress of work before its first step. */
export const queued: Progress<"queued"> = { step: "queued", percent: 0, message: "Waiting for its turn." };

/** Progress of work that a stopped server left, until another server resumes the work. */
export const interrupted: Progress<"queued"> = {
  step: "queued",
  percent: 0,
  message: "Interrupted by a restart of the server. Waiting to resume.",
};

/** Progress of work that a suspension interrupted. */
export const suspended: Progress<"queued"> = {
  step: "queued",
  percent: 0,
  message: "Interrupted by the suspension of the workspace. Resumes when it ends.",
};

const messageMaxChars = 200;

/** Returns the schema of the field `progress` in responses. */
export function progressSchema<const Step extends string>(id: string, steps: readonly [Step, ...Step[]]) {
  return z
    .object({
      step: z.enum(steps).describe("Current step; the enum lists the steps in order."),
      percent: z.int().min(0).max(100).describe("Progress of the whole work, 0 to 100."),
      message: z
        .string()
        .describe("Current work in one line, at most 200 characters.")
        .meta({ example: "RUN npm ci" }),
    })
    .meta({ id });
}

/** Span of a step within the whole work, in percent. */
export interface Span {
  from: number;
  to: number;
}

/**
 * Writes changes of progress, one at a time. A change during a write replaces the one that waits. So work with many
 * changes costs a write at a time. The percent never falls.
 */
export class ProgressWriter<Step extends string> {
  readonly #write: (progress: Progress<Step>) => Promise<void>;
  #last: Progress<Step> | undefined;
  #waiting: Progress<Step> | undefined;
  #writing: Promise<void> | undefined;

  constructor(write: (progress: Progress<Step>) => Promise<void>) {
    this.#write = write;
  }

  /** Resolves when the row contains this progress or a later one. After a failed write, the next one is tried. */
  set(step: Step, percent: number, message: string): Promise<void> {
    const next = {
      step,
      percent: Math.max(Math.min(100, Math.round(percent)), this.#last?.percent ?? 0),
      message: message.replaceAll("\0", "").toWellFormed().slice(0, messageMaxChars),
    };
    const { step: lastStep, percent: lastPercent, message: lastMessage } = this.#last ?? {};
    if (next.step === lastStep && next.percent === lastPercent && next.message === lastMessage)
      return this.settled();
    this.#last = next;
    this.#waiting = next;
    this.#writing ??= this.#drain();
    return this.#writing;
  }

  /** Sets the progress within the span of a step. `fraction` is from 0 to 1. */
  within(step: Step, { from, to }: Span, fraction: number, message: string): Promise<void> {
    return this.set(step, from + (to - from) * Math.min(1, Math.max(0, fraction)), message);
  }

  /** Resolves when no write is running. */
  async settled(): Promise<void> {
    await this.#writing;
  }

  async #drain(): Promise<void> {
    for (;;) {
      const next = this.#waiting;
      if (next === undefined) break;
      this.#waiting = undefined;
      await this.#write(next).catch(() => {});
    }
    this.#writing = undefined;
  }
}
