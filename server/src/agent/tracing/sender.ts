/**
 * Sends spans to the collector. Spans are batched for a second, retried if a retry may help, and dropped otherwise.
 * Runs never wait for a collector, and a failing collector loses only these spans.
 */
import { setTimeout as sleep } from "node:timers/promises";
import type { Logger } from "pino";
import { type Attribute, type Span, toOtlp } from "./otlp.ts";

export interface Collector {
  /** Base URL of the collector. The sender appends `/v1/traces`. */
  endpoint: string;
  headers: Readonly<Record<string, string>>;
  resource: Readonly<Record<string, Attribute>>;
}

/** Maximum size of the waiting spans. A span with texts of models and tools may have some megabytes. */
const waitingMaxBytes = 32 * 1024 ** 2;
const waitingMax = 4_096;
const batchMax = 256;
const responseTimeoutMs = 10_000;
const tries = 3;
/** Timeout in milliseconds for the last spans when the process ends. */
const closeTimeoutMs = 3_000;

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

  /**
   * `pauseMs`: pause before the second attempt, doubled before the third. `gatherMs`: time to collect the spans of one
   * request.
   */
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

  /** Sends the waiting spans, and stops after three seconds. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    const late = setTimeout(() => this.#stop.abort(), closeTimeoutMs);
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
      const taken = this.#waiting.splice(0, batchMax);
      this.#bytes -= taken.reduce((sum, { bytes }) => sum + bytes, 0);
      const why = await this.#deliver(taken.map(({ span }) => span));
      if (why !== undefined) this.#lost += taken.length;
      if (this.#lost === 0) continue;
      this.#log.warn({ spans: this.#lost, why }, "spans dropped");
      this.#lost = 0;
    }
  }

  /** Sends spans in one request. Returns the reason of a failure, or undefined for success. */
  async #deliver(spans: readonly Span[]): Promise<string | undefined> {
    const { endpoint, headers, resource } = this.#collector;
    const body = JSON.stringify(toOtlp(spans, resource));
    let why = "";
    for (let attempt = 0; attempt < tries; attempt += 1) {
      const { signal } = this.#stop;
      if (attempt > 0)
        await sleep(this.#pauseMs * attempt, undefined, { signal, ref: false }).catch(() => {});
      if (signal.aborted) return why || "the process is stopping";
      try {
        const response = await fetch(`${endpoint.replace(/\/+$/, "")}/v1/traces`, {
          method: "POST",
          headers: { ...headers, "content-type": "application/json" },
          body,
          redirect: "error",
          signal: AbortSignal.any([signal, AbortSignal.timeout(responseTimeoutMs)]),
        });
        await response.body?.cancel();
        if (response.ok) return undefined;
        why = `the collector returned ${response.status}`;
        // OTLP allows retries only for these statuses.
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
