import { expect, test } from "vitest";
import { Nft } from "./nft.ts";

test("never overlaps transactions, and joins waiting texts into one", async () => {
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

test("rejects only the caller whose text fails", async () => {
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
