import { expect, test } from "vitest";
import { waitForAll } from "./wait-for-all.ts";

test("throws a failure only after all work has ended", async () => {
  const slow = Promise.withResolvers<void>();
  let ended = false;
  const all = waitForAll(
    Promise.reject(new Error("early")),
    slow.promise.then(() => (ended = true)),
  );
  slow.resolve();
  await expect(all).rejects.toThrow("early");
  expect(ended).toBe(true);
});
