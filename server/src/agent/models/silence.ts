/** Timeout for a model's server that sends nothing. Each received byte restarts the timeout. */
import { ModelFailure } from "./failure.ts";

/**
 * Default timeout, below the 300 s after which the connection times out. Models that reason silently take one or two
 * minutes.
 */
const defaultSilenceSeconds = 180;

export class SilenceTimeout {
  readonly #abort = new AbortController();
  readonly #seconds: number;
  #timer: NodeJS.Timeout | undefined;
  #isResponded = false;

  constructor(seconds = defaultSilenceSeconds) {
    this.#seconds = seconds;
    this.#start();
  }

  /** Signal that is aborted with a `ModelFailure` after the timeout. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Restarts the timeout, because data was received. */
  restart(): void {
    this.#isResponded = true;
    this.#timer?.refresh();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #start(): void {
    const seconds = this.#seconds;
    this.#timer = setTimeout(() => {
      const failure = new ModelFailure("away", `The model's server sent nothing for ${seconds} s.`, {
        isFromServer: this.#isResponded,
        silentSeconds: seconds,
      });
      this.#abort.abort(failure);
    }, seconds * 1000);
  }
}
