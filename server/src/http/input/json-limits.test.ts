import fc from "fast-check";
import { expect, test } from "vitest";
import { exceededLimit, maxDepth, maxKeys, maxValues } from "./json-limits.ts";

const excessOf = (text: string) => exceededLimit(Buffer.from(text));
const nestArrays = (depth: number) => "[".repeat(depth) + "]".repeat(depth);
const keys = (count: number) => Array.from({ length: count }, (_, n) => `"k${n}":1`).join(",");

test("reports the first limit that a body exceeds, and none at the limit", () => {
  expect(excessOf(nestArrays(maxDepth))).toBeUndefined();
  expect(excessOf(nestArrays(maxDepth + 1))).toContain(`deeper than ${maxDepth} levels`);
  expect(excessOf(`{"a":`.repeat(5000))).toContain("levels");
  expect(excessOf(`{${keys(maxKeys)}}`)).toBeUndefined();
  expect(excessOf(`{"inner":{${keys(maxKeys + 1)}}}`)).toContain(`more than ${maxKeys} keys`);
  expect(excessOf(`[${"{},".repeat(maxValues / 2)}1]`)).toContain(`more than ${maxValues} values`);
});

test("counts the keys of each object separately", () => {
  const wide = `{${keys(maxKeys)}}`;
  expect(excessOf(`[${wide},${wide},{"a":${wide}}]`)).toBeUndefined();
});

test("does not count the contents of strings", () => {
  expect(
    excessOf(JSON.stringify({ text: `\\"${"[{:,".repeat(maxValues)}`, other: ["\\", '"'] })),
  ).toBeUndefined();
  expect(excessOf(`"${"[".repeat(100)}`)).toBeUndefined();
});

test("accepts every JSON value of ordinary shape", () => {
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 20 }), (value) => excessOf(JSON.stringify(value)) === undefined),
  );
});
