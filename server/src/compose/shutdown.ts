/** The end of the process: signals, uncaught errors, and a start that fails. */
import type { Logger } from "pino";

/** Grace period of a restart. Until the next process accepts them, new clients wait at the listening socket. */
const restartGraceMs = 3_000;

export class Shutdown {
  readonly #running: AsyncDisposableStack;
  readonly #log: Logger;
  /** Time that running requests and jobs have to end. */
  graceMs: number;
  #isEnding = false;

  constructor(options: { running: AsyncDisposableStack; log: Logger; graceMs: number }) {
    this.#running = options.running;
    this.#log = options.log;
    this.graceMs = options.graceMs;
  }

  /** Drains at the first signal, quickly for SIGHUP (a restart), and exits at the second. */
  listen(): void {
    for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) {
      process.on(signal, (name) => void this.#end(name));
    }
    process.on("uncaughtException", (error) => {
      this.#log.fatal({ error }, "uncaught error; the server ends");
      process.exit(1);
    });
    // The reader of the log may close its end; the server continues.
    process.stdout.on("error", () => {});
  }

  /** Stops what has started, and exits. A start that fails because of a signal is not an error. */
  async failStart(error: unknown): Promise<void> {
    if (this.#isEnding) return;
    this.#log.fatal({ error }, `the server did not start: ${(error as Error).message}`);
    await this.#running.disposeAsync().catch(() => {});
    process.exit(1);
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    if (this.#isEnding) process.exit(1);
    this.#isEnding = true;
    if (signal === "SIGHUP") this.graceMs = Math.min(this.graceMs, restartGraceMs);
    this.#log.info({ signal }, "draining; a second signal ends the server at once");
    try {
      await this.#running.disposeAsync();
      this.#log.info("the server ended");
      process.exit(0);
    } catch (error) {
      this.#log.error({ error }, "the server stopped, but could not release everything in order");
      process.exit(1);
    }
  }
}
