import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { PausableTimer } from "./pausable-timer.ts";

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

test("fires after its time, and does not count the time of overlapping pauses", () => {
  const end = vi.fn<() => void>();
  const timer = new PausableTimer(1_000, end);
  vi.advanceTimersByTime(400);
  timer.pause();
  timer.pause();
  vi.advanceTimersByTime(60_000);
  timer.resume();
  vi.advanceTimersByTime(60_000);
  expect(timer.leftMs).toBe(600);
  timer.resume();
  vi.advanceTimersByTime(599);
  expect(end).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1);
  expect(end).toHaveBeenCalledTimes(1);
});

test("never fires after it was stopped, even if a pause ends later", () => {
  const end = vi.fn<() => void>();
  const timer = new PausableTimer(1_000, end);
  timer.pause();
  timer.stop();
  timer.resume();
  vi.advanceTimersByTime(5_000);
  expect(end).not.toHaveBeenCalled();
});
