/**
 * Which custom names are served, by heart: a request for one asks nobody else. Read anew every two seconds, so that a
 * name is served that long after it was verified, and no longer than that after it was taken away, whichever server
 * of the database did it.
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
        .catch((error: unknown) => this.#app.log.warn({ error }, "custom domains could not be read"))
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

  /** The host that the custom one stands for; both in lower case, without ports. */
  generatedOf(host: string): string | undefined {
    return this.#generated.get(host);
  }
}
