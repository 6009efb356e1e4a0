import { expect, test } from "vitest";
import { mean, percentile } from "./measure.ts";

test("returns a measured value as the percentile, by nearest rank", () => {
  const samples = [40, 10, 30, 20];
  expect(percentile(samples, 50)).toBe(20);
  expect(percentile(samples, 99)).toBe(40);
  expect(percentile(samples, 0)).toBe(10);
  expect(percentile([7], 50)).toBe(7);
});

test("returns no percentile if there are no samples", () => {
  expect(() => percentile([], 50)).toThrow("no samples");
});

test("averages durations, so that their rounding cancels out", () => {
  expect(mean([1, 2, 2, 3])).toBe(2);
});
