import { expect, test } from "vitest";
import { Leftovers } from "./leftovers.ts";

function failing(times: number) {
  const logged: string[] = [];
  let attempts = 0;
  const leftovers = new Leftovers({
    remove: async () => {
      attempts += 1;
      if (attempts <= times) throw new Error("busy");
    },
    log: (event) => logged.push(event),
    retryMs: 1,
  });
  return { leftovers, logged, attempts: () => attempts };
}

test("retries a failed removal until it succeeds, and logs the failure once", async () => {
  const { leftovers, logged } = failing(3);
  expect(await leftovers.remove("a")).toBe(false);
  await expect.poll(() => leftovers.remaining).toEqual([]);
  expect(logged).toEqual(["leftover_set_aside", "leftover_removed_late"]);
});

test("does not retry a name that is in use again", async () => {
  const { leftovers, attempts } = failing(Infinity);
  await leftovers.remove("a");
  await leftovers.release("a");
  const before = attempts();
  await leftovers.remove("b");
  await expect.poll(attempts).toBeGreaterThan(before + 2);
  expect(leftovers.remaining).toEqual(["b"]);
  await leftovers.close();
});

test("stops retrying after close", async () => {
  const { leftovers, attempts } = failing(Infinity);
  await leftovers.remove("a");
  await leftovers.close();
  const before = attempts();
  expect(await leftovers.remove("b")).toBe(false);
  expect(attempts()).toBe(before + 1);
});
