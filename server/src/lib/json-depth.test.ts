import { expect, test } from "vitest";
import { isNestedDeeper } from "./json-depth.ts";

const nestArrays = (depth: number, [open, close] = ["[", "]"]) => open!.repeat(depth) + close!.repeat(depth);

test.each([
  [nestArrays(8), false],
  [nestArrays(9), true],
  [nestArrays(9, ['{"a":', "}"]), true],
  // Not nested: a sequence of arrays, and brackets inside a string.
  [`[${Array.from({ length: 100 }, () => "[]").join()}]`, false],
  [JSON.stringify([`${nestArrays(9)}"\\`, nestArrays(9)]), false],
  // Malformed JSON.
  [`${"]".repeat(9)}${nestArrays(8)}`, false],
  [`"${nestArrays(9)}`, false],
])("detects whether this JSON is nested deeper than the limit: %s", (json, isDeeper) => {
  expect(isNestedDeeper(Buffer.from(json), 8)).toBe(isDeeper);
});

test("detects the nesting of a million arrays without an overflow of the stack", () => {
  expect(isNestedDeeper(Buffer.alloc(1_000_000, "["), 512)).toBe(true);
});
