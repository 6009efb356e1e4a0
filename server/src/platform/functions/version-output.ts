/** Writes the log and the progress of a version during its deploy. Both are for readers only. */
import type { App } from "#app.ts";
import { StepLog } from "../step-log.ts";
import { appendVersionLog, noteVersionProgress } from "./store.ts";
import type { VersionProgress, VersionStep } from "./tables.ts";

/** The build's part of the whole deploy, in percent. It takes by far the longest. */
const buildFrom = 5;
const buildTo = 85;
const begunAt: Readonly<Record<VersionStep, number>> = { build: buildFrom, start: 90 };
const messageMaxChars = 200;

export class VersionOutput {
  readonly #app: Pick<App, "db" | "clock" | "log">;
  readonly #id: string;
  readonly #log: StepLog<VersionStep>;
  #step: VersionStep = "build";

  constructor(app: Pick<App, "db" | "clock" | "log">, id: string) {
    this.#app = app;
    this.#id = id;
    this.#log = new StepLog<VersionStep>(app, (pieces, isCut) => appendVersionLog(app.db, id, pieces, isCut));
  }

  async begin(step: VersionStep, message: string): Promise<void> {
    this.#step = step;
    await this.#note({ step, percent: begunAt[step], message });
    await this.say(`${message}\n`);
  }

  async say(text: string): Promise<void> {
    // The caller continues if the log cannot be written. The lines of that write are missing in it.
    await this.#log.say(this.#step, text).catch(() => {});
  }

  /** Writes lines of the builder. A line "STEP 2/7: …" sets the progress. */
  async build(text: string): Promise<void> {
    await this.say(text);
    const step = [...text.matchAll(/^STEP (\d{1,3})\/(\d{1,3}): (.*)$/gm)].at(-1);
    if (!step) return;
    const [, at, of, message] = step;
    const fraction = Math.min(1, (Number(at) - 1) / Math.max(1, Number(of)));
    await this.#note({
      step: "build",
      percent: Math.round(buildFrom + (buildTo - buildFrom) * fraction),
      message: message!.slice(0, messageMaxChars),
    });
  }

  async fail(reason: string): Promise<void> {
    await this.say(`${reason}\n`);
    await this.flush();
  }

  async flush(): Promise<void> {
    await this.#log.flush().catch((error: unknown) => {
      this.#app.log.warn({ version: this.#id, err: error }, "a part of a build's log was not written");
    });
  }

  async #note(progress: VersionProgress): Promise<void> {
    // A lost progress update is replaced by that of the next step.
    await noteVersionProgress(this.#app.db, this.#id, progress).catch(() => {});
  }
}
