import { expect, test } from "vitest";
import { testClock } from "../../../test/harness.ts";
import { RateLimiter } from "./rate-limit.ts";

test("never exceeds the limit in any 60 s, for random spacing of requests", () => {
  const clock = testClock();
  const limiter = new RateLimiter(clock);
  const rule = { name: "platform", perMinute: 60 };
  const passed: number[] = [];
  let seed = 7;
  for (let at = 0; at < 600_000;) {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    // Bursts and pauses of up to four seconds.
    const gap = seed % 3 === 0 ? seed % 4_000 : seed % 40;
    clock.advance(gap);
    at += gap;
    if (limiter.take("a", rule).isAllowed) passed.push(at);
  }
  const most = Math.max(
    ...passed.map((from, first) => passed.slice(first).findIndex((at) => at >= from + 60_000)),
  );
  expect(most).toBe(60);
  expect(passed.length).toBeGreaterThan(500);
});

test("allows a full burst at once, and one more request when the first leaves the window", () => {
  const clock = testClock();
  const limiter = new RateLimiter(clock);
  const rule = { name: "platform", perMinute: 3 };
  const take = () => limiter.take("a", rule);
  expect(take()).toEqual({
    isAllowed: true,
    limit: 3,
    remaining: 2,
    resetSeconds: 60,
    retryAfterSeconds: 0,
  });
  clock.advance(20_000);
  take();
  take();
  expect(take()).toEqual({
    isAllowed: false,
    limit: 3,
    remaining: 0,
    resetSeconds: 60,
    retryAfterSeconds: 40,
  });
  clock.advance(40_000);
  expect(take().isAllowed).toBe(true);
  expect(take().isAllowed).toBe(false);
  expect(limiter.take("b", rule).isAllowed).toBe(true);
});

test("refills a bucket evenly up to its burst", () => {
  const clock = testClock();
  const limiter = new RateLimiter(clock);
  const rule = { name: "creates", perMinute: 600, burst: 2 };
  const countAllowed = () => limiter.take("a", rule).isAllowed;
  expect([countAllowed(), countAllowed(), countAllowed()]).toEqual([true, true, false]);
  clock.advance(100);
  expect([countAllowed(), countAllowed()]).toEqual([true, false]);
});

test("bounds the number of counters, and keeps those in use", () => {
  const clock = testClock();
  const limiter = new RateLimiter(clock, 100);
  const rule = { name: "sign-in", perMinute: 5 };
  for (let n = 0; n < 10_000; n++) {
    if (n % 50 === 0) limiter.take("in use", rule);
    limiter.take(`made up ${n}`, rule);
    expect(limiter.size).toBeLessThanOrEqual(200);
  }
  expect(limiter.take("in use", rule).isAllowed).toBe(false);
  clock.advance(600_000);
  limiter.take("a", rule);
  clock.advance(600_000);
  limiter.take("a", rule);
  expect(limiter.size).toBe(1);
});
