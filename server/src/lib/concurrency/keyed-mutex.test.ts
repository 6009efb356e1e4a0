import { expect, test } from "vitest";
import { KeyedMutex } from "./keyed-mutex.ts";

test("runs work of the same key in order, even after a failure, and does not delay other keys", async () => {
  const turns = new KeyedMutex();
  const done: string[] = [];
  let open: () => void = () => {};
  const first = turns.run("a", async () => {
    await new Promise<void>((resolve) => (open = resolve));
    done.push("a1");
    throw new Error("a1 failed");
  });
  const failed = first.catch((error: Error) => error.message);
  const second = turns.run("a", async () => done.push("a2"));
  await turns.run("b", async () => done.push("b1"));
  open();
  expect(await failed).toBe("a1 failed");
  await second;
  expect(done).toEqual(["b1", "a1", "a2"]);
});
