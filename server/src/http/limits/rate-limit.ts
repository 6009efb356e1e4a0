/**
 * Rate limits, one counter per holder and rule, in this process: a host runs one server process, so these counters are
 * complete. A rule without a burst is a sliding window: it allows at most `perMinute` requests in any 60 s. A rule with
 * a burst is a token bucket, which holds the burst and refills evenly.
 */
import type { Clock } from "#lib/clock.ts";

export interface RateRule {
  /** Counters of different rules are separate. */
  name: string;
  perMinute: number;
  /** Capacity of the token bucket. With a burst, the rule is a token bucket. */
  burst?: number;
}

export interface RateVerdict {
  isAllowed: boolean;
  limit: number;
  remaining: number;
  /** Seconds until the counter is empty. */
  resetSeconds: number;
  /** Seconds until a request is allowed; 0 if this request was allowed. */
  retryAfterSeconds: number;
}

interface Counter {
  take(rule: RateRule, now: number): RateVerdict;
}

/** Two generations of this many counters bound the memory for any number of holders. */
const countersPerGeneration = 10_000;
/** After ten minutes without use a counter is empty under every rule. */
const generationMs = 600_000;

export class RateLimiter {
  readonly #clock: Clock;
  readonly #perGeneration: number;
  #young = new Map<string, Counter>();
  /**
   * Counters of the previous generation. A use moves a counter to the current generation. Eviction drops all counters
   * of the previous generation at once.
   */
  #old = new Map<string, Counter>();
  #generationAtMs = 0;

  constructor(clock: Clock, perGeneration = countersPerGeneration) {
    this.#clock = clock;
    this.#perGeneration = perGeneration;
  }

  /** Number of counters in memory. */
  get size(): number {
    return this.#young.size + this.#old.size;
  }

  take(holder: string, rule: RateRule): RateVerdict {
    const key = `${rule.name} ${holder}`;
    const now = this.#clock.now().getTime();
    if (this.#young.size >= this.#perGeneration || now - this.#generationAtMs >= generationMs) {
      this.#old = this.#young;
      this.#young = new Map();
      this.#generationAtMs = now;
    }
    let counter = this.#young.get(key);
    if (counter === undefined) {
      counter = this.#old.get(key) ?? (rule.burst === undefined ? new SlidingWindow() : new TokenBucket());
      this.#old.delete(key);
      this.#young.set(key, counter);
    }
    return counter.take(rule, now);
  }
}

const windowMs = 60_000;
/**
 * Length of a slot. Requests of the same slot leave the window together, with the last of them. A window has at most
 * 240 slots.
 */
const slotMs = 250;

interface Slot {
  firstMs: number;
  lastMs: number;
  count: number;
}

class SlidingWindow implements Counter {
  readonly #slots: Slot[] = [];
  #count = 0;

  take({ perMinute }: RateRule, now: number): RateVerdict {
    const slots = this.#slots;
    while (slots[0] !== undefined && slots[0].lastMs + windowMs <= now) this.#count -= slots.shift()!.count;
    const isAllowed = this.#count < perMinute;
    if (isAllowed) this.#add(now);
    const secondsUntil = (slot: Slot | undefined): number =>
      slot === undefined ? 0 : Math.ceil((slot.lastMs + windowMs - now) / 1000);
    return {
      isAllowed,
      limit: perMinute,
      remaining: Math.max(0, perMinute - this.#count),
      resetSeconds: secondsUntil(slots.at(-1)),
      retryAfterSeconds: isAllowed ? 0 : Math.max(1, secondsUntil(slots[0])),
    };
  }

  #add(now: number): void {
    this.#count++;
    const last = this.#slots.at(-1);
    if (last === undefined || now - last.firstMs >= slotMs) {
      this.#slots.push({ firstMs: now, lastMs: now, count: 1 });
    } else {
      last.lastMs = now;
      last.count++;
    }
  }
}

class TokenBucket implements Counter {
  #tokens: number | undefined;
  #atMs = 0;

  take({ perMinute, burst = perMinute }: RateRule, now: number): RateVerdict {
    const perMs = perMinute / windowMs;
    const elapsedMs = Math.max(0, now - this.#atMs);
    const available = Math.min(burst, (this.#tokens ?? burst) + elapsedMs * perMs);
    const isAllowed = available >= 1;
    const left = isAllowed ? available - 1 : available;
    this.#tokens = left;
    this.#atMs = now;
    return {
      isAllowed,
      limit: perMinute,
      remaining: Math.floor(left),
      resetSeconds: Math.ceil((burst - left) / perMs / 1000),
      retryAfterSeconds: isAllowed ? 0 : Math.max(1, Math.ceil((1 - left) / perMs / 1000)),
    };
  }
}
