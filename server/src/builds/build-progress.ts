/**
 * Progress of an app's build: the base images that this host makes come first, then the builder's own steps. Changes of
 * a base image's progress are also logged, because the first build on a base takes minutes.
 */

/** Receives the progress of a build as a fraction from 0 to 1. */
export type OnProgress = (made: { fraction: number; message: string }) => void;

/** Fraction of a build that making its base images takes. */
const baseShare = 0.5;
/** Percent between two log lines of one step. */
const linePercent = 10;

export class BuildProgress {
  readonly #log: (line: string) => void;
  readonly #report: OnProgress;
  #from = 0;
  #logged: { name: string; step: string; percent: number } | undefined;

  constructor(log: (line: string) => void, report: OnProgress = () => {}) {
    this.#log = log;
    this.#report = report;
  }

  wait(message: string): void {
    this.#report({ fraction: 0, message });
  }

  base(name: string, { fraction, step }: { fraction: number; step: string }): void {
    this.#from = baseShare;
    this.#report({ fraction: fraction * baseShare, message: `Making ${name}: ${step}` });
    const percent = Math.floor(fraction * 100);
    const { name: before, step: lastStep, percent: lastPercent } = this.#logged ?? {};
    if (before === name && lastStep === step && percent < (lastPercent ?? 0) + linePercent) return;
    this.#logged = { name, step, percent };
    const first = before === name ? "" : " It is kept for the next builds.";
    this.#log(`Making ${name} on this host, ${percent} %: ${step}.${first}\n`);
  }

  /** Parses steps in the builder's output: "STEP 2/7: RUN …", or "[1/2] STEP 2/7: …" in a build of two stages. */
  read(text: string): void {
    const last = [...text.matchAll(stepLine)].at(-1);
    if (!last) return;
    const [, stage = "1", stages = "1", step, steps, message = ""] = last;
    const ofStage = (Number(step) - 1) / Math.max(1, Number(steps));
    const fraction = Math.min(1, (Number(stage) - 1 + ofStage) / Math.max(1, Number(stages)));
    this.#report({ fraction: this.#from + (1 - this.#from) * fraction, message });
  }
}

const stepLine = /^(?:\[(\d{1,3})\/(\d{1,3})\] )?STEP (\d{1,4})\/(\d{1,4}): (.{1,1000})/gm;
