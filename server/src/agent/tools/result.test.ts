import { expect, test } from "vitest";
import { cutOff, resultMaxBytes } from "./result.ts";

test("keeps the beginning and the end of a long text, and adds the size of the omitted part", () => {
  const cut = cutOff(`begin${"x".repeat(100_000)}end`);
  expect(cut).toMatch(/^beginx+\n\[cut off: 34472 bytes left out\]\nx+end$/);
  expect(cutOff("x".repeat(resultMaxBytes))).toHaveLength(resultMaxBytes);
});

test("does not cut a long text within a character", () => {
  for (const start of ["", "x", "xx"]) {
    const cut = cutOff(start + "€".repeat(50_000));
    expect(cut).not.toContain("\uFFFD");
    expect(cut).toMatch(/€\n\[cut off: \d+ bytes left out\]\n€/);
  }
});
