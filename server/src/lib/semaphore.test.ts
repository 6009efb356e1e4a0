import { expect, test } from "vitest";
import { Semaphore } from "./semaphore.ts";

test("no more than the limit run at once, and all of them run", async () => {
  const semaphore = new Semaphore(2);
  let running = 0;
  let most = 0;
  const work = async () => {
    most = Math.max(most, (running += 1));
    await Promise.resolve();
    running -= 1;
  };
  await Promise.all(Array.from({ length: 7 }, () => semaphore.run(work)));
  expect([most, running]).toEqual([2, 0]);
});

test("what is done ahead of need waits until nobody else does", async () => {
  const semaphore = new Semaphore(1);
  const order: string[] = [];
  const note = (name: string) => async () => void order.push(name);
  await Promise.all([
    semaphore.run(note("first")),
    semaphore.run(note("ahead"), { isAhead: true }),
    semaphore.run(note("second")),
    semaphore.run(note("third")),
  ]);
  expect(order).toEqual(["first", "second", "third", "ahead"]);
});

test("work that fails gives its place back", async () => {
  const semaphore = new Semaphore(1);
  await expect(semaphore.run(() => Promise.reject(new Error("broken")))).rejects.toThrow("broken");
  await expect(semaphore.run(async () => "next")).resolves.toBe("next");
});
