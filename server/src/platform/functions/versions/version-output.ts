/**
 * Writes the log and the progress of a version during its deploy. Log and progress are shown to people only; the deploy
 * does not depend on them.
 */
import type { App } from "#app.ts";
import { ProgressWriter, type Span } from "#platform/progress.ts";
import { StepLog } from "#platform/step-log.ts";
import { appendVersionLog, noteVersionProgress } from "../store.ts";
import type { VersionStep } from "../tables.ts";

/** Spans of the steps within a deploy, in percent. The build takes by far the longest. */
const spans: Readonly<Record<VersionStep, Span>> = {
  build: { from: 5, to: 85 },
  start: { from: 90, to: 100 },
};

export class VersionOutput {
  readonly #app: Pick<App, "db" | "clock" | "log">;
  readonly #id: string;
  readonly #log: StepLog<VersionStep>;
  readonly #progress: ProgressWriter<VersionStep>;
  #step: VersionStep = "build";

  constructor(app: Pick<App, "db" | "clock" | "log">, id: string) {
    this.#app = app;
    this.#id = id;
    this.#log = new StepLog<VersionStep>(app, (pieces, isCut) => appendVersionLog(app.db, id, pieces, isCut));
    this.#progress = new ProgressWriter((progress) => noteVersionProgress(app.db, id, progress));
  }

  async begin(step: VersionStep, message: string): Promise<void> {
    this.#step = step;
    await this.#progress.set(step, spans[step].from, message);
    await this.append(`${message}\n`);
  }

  async append(text: string): Promise<void> {
    // A deploy continues if its log cannot be written. The log then lacks the lines of that write.
    await this.#log.append(this.#step, text).catch(() => {});
  }

  readonly build = ({ fraction, message }: { fraction: number; message: string }): void => {
    void this.#progress.within("build", spans.build, fraction, message);
  };

  async fail(reason: string): Promise<void> {
    await this.append(`${reason}\n`);
    await this.flush();
  }

  /** Resolves when the log and the progress are stored. */
  async flush(): Promise<void> {
    await this.#progress.settled();
    await this.#log.flush().catch((error: unknown) => {
      this.#app.log.warn({ version: this.#id, err: error }, "a part of a build's log was not written");
    });
  }
}
