import { expect, test } from "vitest";
import { storableJson, storableText } from "./storable.ts";

test("replaces only characters that the database cannot store, in keys and values", () => {
  const value = { "a\0": ["\ud83d", "x\udc00y", "😀", "\\u0000", "\\\0", '\u0001\n"', 1, null] };
  expect(JSON.parse(storableJson(value))).toEqual({
    "a\uFFFD": ["\uFFFD", "x\uFFFDy", "😀", "\\u0000", "\\\uFFFD", '\u0001\n"', 1, null],
  });
  expect(storableText("a\0b\ud83dc😀")).toBe("a\uFFFDb\uFFFDc😀");
});
