import { expect, test } from "vitest";
import { Nft } from "./nft.ts";

test("transactions never overlap, and what waits is joined into one", async () => {
  const done: string[] = [];
  let running = 0;
  const nft = new Nft(async (text) => {
    expect(++running).toBe(1);
    await new Promise(setImmediate);
    running--;
    done.push(text);
  });
  await Promise.all(["a\n", "b\n", "c\n"].map((text) => nft.apply(text)));
  expect(done).toEqual(["a\n", "b\nc\n"]);
});

test("a text that fails rejects its own caller and nobody else", async () => {
  const done: string[] = [];
  const nft = new Nft(async (text) => {
    if (text.includes("bad")) throw new Error("syntax error");
    done.push(text);
  });
  const results = await Promise.allSettled(["a\n", "b\n", "bad\n", "c\n", ""].map((text) => nft.apply(text)));
  expect(results.map(({ status }) => status)).toEqual([
    "fulfilled",
    "fulfilled",
    "rejected",
    "fulfilled",
    "fulfilled",
  ]);
  expect(done).toEqual(["a\n", "b\n", "c\n"]);
});
