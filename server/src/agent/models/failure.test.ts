import { expect, test } from "vitest";
import { retryAfter } from "./failure.ts";

const now = Date.parse("2026-11-23T10:00:00Z");

test.each([
  ["30", 30_000],
  ["0", 0],
  ["1.5", 1500],
  ["Mon, 23 Nov 2026 10:00:45 GMT", 45_000],
  ["Mon, 23 Nov 2026 09:00:00 GMT", 0],
  ["soon", null],
  ["-5", null],
  ["", null],
])("converts Retry-After to a wait: %s", (value, milliseconds) => {
  expect(retryAfter({ "retry-after": value }, now)).toBe(milliseconds);
});

test("returns null without a Retry-After header", () => {
  expect(retryAfter({}, now)).toBeNull();
  expect(retryAfter(undefined, now)).toBeNull();
});
