/** Timeout for a model's server that sends nothing. Each byte restarts it. */
import { ModelFailure } from "./failure.ts";

/** Below the 300 s after which the connection times out. Models that reason silently take one or two minutes. */
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

  /** Aborted with a `ModelFailure`. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Restarts the timeout after received data. */
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
