import { expect, test } from "vitest";
import { together } from "./run-all-or-abort.ts";

test("throws a failure only after all work has ended", async () => {
  const slow = Promise.withResolvers<void>();
  let ended = false;
  const all = together(
    Promise.reject(new Error("early")),
    slow.promise.then(() => (ended = true)),
  );
  slow.resolve();
  await expect(all).rejects.toThrow("early");
  expect(ended).toBe(true);
});
