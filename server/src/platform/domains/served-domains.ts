/**
 * The served custom names in memory, so that a request needs no query. The names are read every two seconds. So a name
 * that any server verifies is served within two seconds, and a removed one is no longer served after them.
 */
import type { App } from "#app.ts";
import { hostname } from "#config.ts";
import { listVerified } from "./store.ts";

type Needs = Pick<App, "db" | "config" | "log">;

const readEveryMs = 2_000;

export class ServedDomains {
  readonly #app: Needs;
  #generated: ReadonlyMap<string, string> = new Map();
  #timer: NodeJS.Timeout | undefined;
  #reading: Promise<void> | undefined;

  constructor(app: Needs) {
    this.#app = app;
  }

  async start(): Promise<void> {
    await this.read();
    this.#timer = setInterval(() => {
      this.#reading ??= this.read()
        .catch((error: unknown) => this.#app.log.warn({ error }, "reading custom domains failed"))
        .finally(() => (this.#reading = undefined));
    }, readEveryMs).unref();
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await this.#reading;
  }

  async read(): Promise<void> {
    const apps = hostname(this.#app.config.appsDomain);
    const rows = await listVerified(this.#app.db);
    this.#generated = new Map(rows.map((row) => [row.custom_domain, `${row.host_label}.${apps}`]));
  }

  /**
   * Returns the generated host of a custom host; undefined for any other. Both hosts are in lower case and without
   * ports.
   */
  generatedOf(host: string): string | undefined {
    return this.#generated.get(host);
  }
}
