import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { ProgressDeadline } from "./progress-deadline.ts";

beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] }));
afterEach(() => void vi.useRealTimers());

const minuteMs = 60_000;

test("ends the wait after the quiet time if there is no progress", async () => {
  using deadline = new ProgressDeadline({ quietMs: minuteMs, wholeMs: 10 * minuteMs });
  await vi.advanceTimersByTimeAsync(minuteMs - 1);
  expect(deadline.signal.aborted).toBe(false);
  await vi.advanceTimersByTimeAsync(1);
  expect(deadline.signal.aborted).toBe(true);
  expect(deadline.seconds).toBe(60);
});

test("counts from the last sign of progress, and ends the wait at the total limit in any case", async () => {
  let works = true;
  const options = { quietMs: minuteMs, wholeMs: 10 * minuteMs, hasProgressed: async () => works };
  using slow = new ProgressDeadline(options);
  using endless = new ProgressDeadline({ ...options, hasProgressed: async () => true });
  await vi.advanceTimersByTimeAsync(5 * minuteMs);
  works = false;
  await vi.advanceTimersByTimeAsync(minuteMs - 2_000);
  expect(slow.signal.aborted).toBe(false);
  await vi.advanceTimersByTimeAsync(2_000);
  expect(slow.signal.aborted).toBe(true);
  expect(endless.signal.aborted).toBe(false);
  await vi.advanceTimersByTimeAsync(4 * minuteMs + 1_000);
  expect(endless.signal.aborted).toBe(true);
  expect(endless.seconds).toBe(600);
});

test("ends the wait with the error of a failed poll, and never after the deadline is disposed", async () => {
  const failure = new Error("the app ended");
  const hasProgressed = async () => Promise.reject(failure);
  using failed = new ProgressDeadline({ quietMs: minuteMs, wholeMs: minuteMs, hasProgressed });
  const disposed = new ProgressDeadline({ quietMs: minuteMs, wholeMs: minuteMs });
  disposed[Symbol.dispose]();
  await vi.advanceTimersByTimeAsync(2 * minuteMs);
  expect(failed.signal.reason).toBe(failure);
  expect(disposed.signal.aborted).toBe(false);
});

test("ends the wait when a poll never responds", async () => {
  const hasProgressed = () => new Promise<boolean>(() => {});
  using stuck = new ProgressDeadline({ quietMs: minuteMs, wholeMs: minuteMs, hasProgressed });
  await vi.advanceTimersByTimeAsync(minuteMs + 1_000);
  expect(stuck.signal.aborted).toBe(true);
});
