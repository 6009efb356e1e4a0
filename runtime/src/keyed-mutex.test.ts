import { expect, test } from "vitest";
import { KeyedMutex } from "./keyed-mutex.ts";

test("runs work on one key in order, also after a failure", async () => {
  const mutex = new KeyedMutex<string>();
  const order: string[] = [];
  const gate = Promise.withResolvers<void>();
  const first = mutex.run("a", async () => {
    await gate.promise;
    order.push("first");
    throw new Error("no");
  });
  const second = mutex.run("a", async () => order.push("second"));
  await mutex.run("b", async () => order.push("other key"));
  gate.resolve();
  await expect(first).rejects.toThrow("no");
  await second;
  await mutex.waitUntilIdle();
  expect(order).toEqual(["other key", "first", "second"]);
});
