import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, test } from "vitest";
import { FairSemaphore, type FairSemaphoreOptions } from "./fair-semaphore.ts";

/** Submits a task for each letter, which is its owner; `end` completes the oldest running task. */
function submit(options: FairSemaphoreOptions, owners: string) {
  const semaphore = new FairSemaphore(options);
  const begun: string[] = [];
  const ends: (() => void)[] = [];
  const all = owners.split("").map((owner) =>
    semaphore.run(owner, () => {
      begun.push(owner);
      return new Promise<void>((resolve) => ends.push(resolve));
    }),
  );
  const endAll = async () => {
    await nextTurn();
    while (ends.length > 0) {
      ends.shift()?.();
      await nextTurn();
    }
  };
  return { semaphore, begun, all, endAll };
}

test("serves owners in turn, with one task at a time for each", async () => {
  const { semaphore, begun, all, endAll } = submit({ limit: 2 }, "aaabbc");
  await nextTurn();
  expect([begun.join(""), semaphore.waiting("a"), semaphore.waiting("c")]).toEqual(["ab", 2, 1]);
  await endAll();
  await Promise.all(all);
  expect(begun.join("")).toBe("abcaba");
});

test("runs at most perOwner tasks of an owner while slots are free", async () => {
  const { semaphore, begun, all, endAll } = submit({ limit: 4, perOwner: 2 }, "aaaab");
  await nextTurn();
  expect([begun.join(""), semaphore.waiting("a"), semaphore.waiting("b")]).toEqual(["aab", 2, 0]);
  await endAll();
  await Promise.all(all);
  expect(begun.join("")).toBe("aabaa");
});

test("refuses an owner whose queue is full, and queues for another owner", async () => {
  const queue = { max: 1, refuse: () => new Error("queue full") };
  const { semaphore, all, endAll } = submit({ limit: 1, queue }, "aaab");
  await expect(all[2]).rejects.toThrow("queue full");
  expect([semaphore.waiting("a"), semaphore.waiting("b")]).toEqual([1, 1]);
  await endAll();
  await Promise.all([all[0], all[1], all[3]]);
});

test("drops a waiting task when its signal aborts, and runs the next", async () => {
  const { semaphore, all, endAll } = submit({ limit: 1 }, "a");
  const gone = new AbortController();
  const dropped = semaphore.run("b", async () => "never", { signal: gone.signal });
  gone.abort(new Error("gone"));
  await expect(dropped).rejects.toThrow("gone");
  expect(semaphore.waiting("b")).toBe(0);
  await endAll();
  await Promise.all(all);
  expect(await semaphore.run("c", async () => "next")).toBe("next");
});

test("releases the slot of a task that fails", async () => {
  const semaphore = new FairSemaphore({ limit: 1 });
  await expect(semaphore.run("a", () => Promise.reject(new Error("no")))).rejects.toThrow("no");
  expect(await semaphore.run("a", async () => "next")).toBe("next");
});
