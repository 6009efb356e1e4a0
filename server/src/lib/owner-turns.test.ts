import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { OwnerTurns } from "./owner-turns.ts";

test("owners take turns, each with one at once, and whoever asks for much keeps only themselves waiting", async () => {
  const turns = new OwnerTurns(2);
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const ask = (owner: string) =>
    turns.run(owner, () => {
      begun.push(owner);
      return new Promise<void>((resolve) => ends.push(resolve));
    });
  const all = ["a", "a", "a", "b", "b", "c"].map(ask);
  await nextTurn();
  expect([begun.join(""), turns.waiting("a"), turns.waiting("c")]).toEqual(["ab", 2, 1]);
  while (ends.length > 0) {
    ends.shift()?.();
    await nextTurn();
  }
  await Promise.all(all);
  expect(begun.join("")).toBe("ababca");
});

test("work that fails makes room", async () => {
  const turns = new OwnerTurns(1);
  await expect(turns.run("a", () => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await turns.run("a", async () => "next")).toBe("next");
});
