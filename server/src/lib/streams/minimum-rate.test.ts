import { expect, test, vi } from "vitest";
import { MinimumRate, TooSlow } from "./minimum-rate.ts";

const size = (piece: Uint8Array) => piece.length;

test("rejects when a window of waiting moves fewer bytes than the minimum", async () => {
  vi.useFakeTimers();
  try {
    const rate = new MinimumRate({ bytesPerSecond: 1000, windowMs: 1000 });
    const slow = rate.wait(new Promise<Uint8Array>(() => {}), size).catch((error: unknown) => error);
    await vi.advanceTimersByTimeAsync(1001);
    expect(await slow).toBeInstanceOf(TooSlow);
  } finally {
    vi.useRealTimers();
  }
});

test("counts only the time of waiting, and starts a new window after a window with enough bytes", async () => {
  vi.useFakeTimers();
  try {
    const rate = new MinimumRate({ bytesPerSecond: 1000, windowMs: 1000 });
    expect(await rate.wait(Promise.resolve(new Uint8Array(1000)), size)).toHaveLength(1000);
    // Time between waits, which must not count.
    await vi.advanceTimersByTimeAsync(60_000);
    let isSettled = false;
    const next = rate.wait(new Promise<Uint8Array>(() => {}), size).catch((error: unknown) => error);
    void next.then(() => (isSettled = true));
    await vi.advanceTimersByTimeAsync(1001);
    expect(isSettled).toBe(false);
    await vi.advanceTimersByTimeAsync(1001);
    expect(await next).toBeInstanceOf(TooSlow);
  } finally {
    vi.useRealTimers();
  }
});
