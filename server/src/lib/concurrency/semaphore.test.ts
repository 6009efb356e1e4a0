import { expect, test } from "vitest";
import { Semaphore } from "./semaphore.ts";

test("runs all tasks, and never more than the limit at once", async () => {
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

test("starts speculative work only when no other task waits", async () => {
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

test("releases the slot of a task that fails", async () => {
  const semaphore = new Semaphore(1);
  await expect(semaphore.run(() => Promise.reject(new Error("broken")))).rejects.toThrow("broken");
  await expect(semaphore.run(async () => "next")).resolves.toBe("next");
});
