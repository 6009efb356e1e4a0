import { expect, test } from "vitest";
import { mean, percentile } from "./measure.ts";

test("a percentile is a value that was measured, by nearest rank", () => {
  const samples = [40, 10, 30, 20];
  expect(percentile(samples, 50)).toBe(20);
  expect(percentile(samples, 99)).toBe(40);
  expect(percentile(samples, 0)).toBe(10);
  expect(percentile([7], 50)).toBe(7);
});

test("of no samples there is no percentile", () => {
  expect(() => percentile([], 50)).toThrow("no samples");
});

test("the mean of rounded durations keeps what the rounding lost of each", () => {
  expect(mean([1, 2, 2, 3])).toBe(2);
});
