import { expect, test } from "vitest";
import { Turns } from "./keyed-mutex.ts";

test("runs work on one key in order, also after a failure", async () => {
  const turns = new Turns<string>();
  const order: string[] = [];
  const gate = Promise.withResolvers<void>();
  const first = turns.take("a", async () => {
    await gate.promise;
    order.push("first");
    throw new Error("no");
  });
  const second = turns.take("a", async () => order.push("second"));
  await turns.take("b", async () => order.push("other key"));
  gate.resolve();
  await expect(first).rejects.toThrow("no");
  await second;
  await turns.settled();
  expect(order).toEqual(["other key", "first", "second"]);
});
