/**
 * Spans on their way to the collector: gathered for a second, sent together, tried again where that may help, and
 * thrown away where it does not. No run waits for a collector, and none that is away costs more than these few.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Logger } from "pino";
import { type Attribute, type Span, toOtlp } from "./otlp.ts";

export interface Collector {
  /** `/v1/traces` is put behind it. */
  endpoint: string;
  headers: Readonly<Record<string, string>>;
  resource: Readonly<Record<string, Attribute>>;
}

/** With what models and tools were told and said one may be some megabytes. */
const waitingMaxBytes = 32 * 1024 ** 2;
const waitingMax = 4_096;
const togetherMax = 256;
const answerWithinMs = 10_000;
const tries = 3;
/** At the end of the process. */
const farewellMs = 3_000;

export class SpanSender {
  readonly #collector: Collector;
  readonly #log: Pick<Logger, "warn">;
  readonly #pauseMs: number;
  readonly #gatherMs: number;
  readonly #stop = new AbortController();
  #waiting: { span: Span; bytes: number }[] = [];
  #bytes = 0;
  #lost = 0;
  #timer: NodeJS.Timeout | undefined;
  #sending: Promise<void> | undefined;

  /** `pauseMs`: before a second try; twice that before a third. `gatherMs`: what comes within that is sent together. */
  constructor(
    collector: Collector,
    log: Pick<Logger, "warn">,
    {
      pauseMs = 1_000,
      gatherMs = 1_000,
    }: { pauseMs?: number | undefined; gatherMs?: number | undefined } = {},
  ) {
    this.#collector = collector;
    this.#log = log;
    this.#pauseMs = pauseMs;
    this.#gatherMs = gatherMs;
  }

  add(span: Span): void {
    const bytes = Object.values(span.attributes).reduce<number>((sum, value) => sum + sizeOf(value), 500);
    if (this.#waiting.length >= waitingMax || this.#bytes + bytes > waitingMaxBytes) {
      this.#lost += 1;
      return;
    }
    this.#waiting.push({ span, bytes });
    this.#bytes += bytes;
    this.#timer ??= setTimeout(() => this.#send(), this.#gatherMs).unref();
  }

  /** What waits is sent, within three seconds. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    const late = setTimeout(() => this.#stop.abort(), farewellMs);
    await this.#sending;
    this.#send();
    await this.#sending;
    clearTimeout(late);
  }

  #send(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#sending ??= this.#sendAll().finally(() => {
      this.#sending = undefined;
    });
  }

  async #sendAll(): Promise<void> {
    while (this.#waiting.length > 0 && !this.#stop.signal.aborted) {
      const taken = this.#waiting.splice(0, togetherMax);
      this.#bytes -= taken.reduce((sum, { bytes }) => sum + bytes, 0);
      const why = await this.#deliver(taken.map(({ span }) => span));
      if (why !== undefined) this.#lost += taken.length;
      if (this.#lost === 0) continue;
      this.#log.warn({ spans: this.#lost, why }, "spans were thrown away");
      this.#lost = 0;
    }
  }

  /** Why it was not taken; undefined where it was. */
  async #deliver(spans: readonly Span[]): Promise<string | undefined> {
    const { endpoint, headers, resource } = this.#collector;
    const body = JSON.stringify(toOtlp(spans, resource));
    let why = "";
    for (let attempt = 0; attempt < tries; attempt += 1) {
      const { signal } = this.#stop;
      if (attempt > 0)
        await sleep(this.#pauseMs * attempt, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return why || "the process ends";
      try {
        const response = await fetch(`${endpoint.replace(/\/+$/, "")}/v1/traces`, {
          method: "POST",
          headers: { ...headers, "content-type": "application/json" },
          body,
          redirect: "error",
          signal: AbortSignal.any([signal, AbortSignal.timeout(answerWithinMs)]),
        });
        await response.body?.cancel();
        if (response.ok) return undefined;
        why = `the collector answered ${response.status}`;
        // OTLP's own list of what may be tried again.
        if (![429, 502, 503, 504].includes(response.status)) return why;
      } catch (error) {
        const { message, cause } = error as Error;
        why = `the collector can't be reached: ${(cause as Error | undefined)?.message ?? message}`;
      }
    }
    return why;
  }
}

function sizeOf(value: Attribute | undefined): number {
  return typeof value === "string" ? value.length : 40;
}
