import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { runAllOrAbort } from "./run-all-or-abort.ts";

const never = new AbortController().signal;
const untilEnded = (ends: AbortSignal) =>
  new Promise<void>((_, reject) => ends.addEventListener("abort", () => reject(ends.reason)));

test("returns the results in the order of the tasks", async () => {
  expect(
    await runAllOrAbort(
      never,
      async () => (await sleep(5), 1),
      async () => "two",
    ),
  ).toEqual([1, "two"]);
});

test("aborts the other tasks after the first failure, and rejects when all have ended", async () => {
  let hasEnded = false;
  const other = async (ends: AbortSignal) => {
    await untilEnded(ends).catch(() => {});
    await sleep(20);
    hasEnded = true;
    throw new Error("a consequence");
  };
  await expect(
    runAllOrAbort(never, other, async () => Promise.reject(new Error("the cause"))),
  ).rejects.toThrow("the cause");
  expect(hasEnded).toBe(true);
});

test("aborts all tasks with the signal's reason", async () => {
  const ends = new AbortController();
  const all = runAllOrAbort(ends.signal, untilEnded, untilEnded);
  ends.abort(new Error("told to"));
  await expect(all).rejects.toThrow("told to");
});
