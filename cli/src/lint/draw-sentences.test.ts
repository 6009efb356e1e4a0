import { expect, test } from "vitest";
import { draw } from "./draw-sentences.ts";

const sentences = Array.from({ length: 200 }, (_, index) => ({
  source: `a.ts:${index}`,
  text: `Text ${index}.`,
}));

test("draws the same sentences for the same seed, and others for another seed", () => {
  expect(draw(sentences, "1", 10)).toEqual(draw(sentences.toReversed(), "1", 10));
  expect(draw(sentences, "1", 10)).not.toEqual(draw(sentences, "2", 10));
});

test("draws a repeated sentence once", () => {
  expect(draw([...sentences, ...sentences], "1", 400)).toHaveLength(200);
});

test("keeps the drawn sentences when other sentences are added", () => {
  const before = draw(sentences, "1", 10);
  const after = draw([...sentences, { source: "b.ts:1", text: "Another text." }], "1", 11);
  expect(before.filter((one) => after.includes(one)).length).toBeGreaterThanOrEqual(10);
});
