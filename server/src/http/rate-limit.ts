/**
 * Token buckets, one per token and rule, in this process: a host runs one server process, so that is the whole truth
 * for it. A bucket holds a minute's worth and refills evenly, so that "100 a minute" never refuses the hundredth
 * request of a minute however they are spaced.
 */
import type { Clock } from "#lib/clock.ts";

export interface RateRule {
  /** Buckets of different rules do not share tokens. */
  name: string;
  /** Refilled evenly. */
  perMinute: number;
  /** How many a full bucket holds. */
  capacity: number;
}

export interface RateVerdict {
  isAllowed: boolean;
  limit: number;
  remaining: number;
  /** Seconds until the bucket is full again. */
  resetSeconds: number;
  /** Seconds until one request would be let through; 0 where it was. */
  retryAfterSeconds: number;
}

interface Bucket {
  tokens: number;
  atMs: number;
}

/** Past this many buckets the full ones are dropped: a full bucket and an absent one are the same. */
const sweepAbove = 10_000;

export class RateLimiter {
  readonly #clock: Clock;
  readonly #buckets = new Map<string, Bucket>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  take(holder: string, rule: RateRule): RateVerdict {
    const key = `${rule.name} ${holder}`;
    const now = this.#clock.now().getTime();
    const perMs = rule.perMinute / 60_000;
    const bucket = this.#buckets.get(key) ?? { tokens: rule.capacity, atMs: now };
    const elapsedMs = Math.max(0, now - bucket.atMs);
    const available = Math.min(rule.capacity, bucket.tokens + elapsedMs * perMs);
    const isAllowed = available >= 1;
    const left = isAllowed ? available - 1 : available;
    if (this.#buckets.size >= sweepAbove) this.#sweep(now);
    this.#buckets.set(key, { tokens: left, atMs: now });
    return {
      isAllowed,
      limit: rule.perMinute,
      remaining: Math.floor(left),
      resetSeconds: Math.ceil((rule.capacity - left) / perMs / 1000),
      retryAfterSeconds: isAllowed ? 0 : Math.max(1, Math.ceil((1 - left) / perMs / 1000)),
    };
  }

  /** A bucket untouched for ten minutes is full under every rule we have. */
  #sweep(now: number): void {
    for (const [key, bucket] of this.#buckets) if (now - bucket.atMs > 600_000) this.#buckets.delete(key);
  }
}
