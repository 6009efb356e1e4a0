import { expect, test } from "vitest";
import { BuildQueue } from "./queue.ts";

const { signal } = new AbortController();

test("many builds of one workspace hold up nobody else's, and one at a time has its store", async () => {
  const queue = new BuildQueue(2);
  const order: string[] = [];
  const ends: (() => void)[] = [];
  const add = (workspace: string, name: string) =>
    queue.run(
      workspace,
      () => {
        order.push(name);
        return new Promise<void>((resolve) => ends.push(resolve));
      },
      { signal, onWait: () => {} },
    );
  const all = [add("a", "a1"), add("a", "a2"), add("a", "a3"), add("b", "b1"), add("c", "c1")];
  const step = () => new Promise((resolve) => setImmediate(resolve));
  await step();
  expect(order).toEqual(["a1", "b1"]);
  ends[0]?.();
  await step();
  expect(order).toEqual(["a1", "b1", "c1"]);
  ends[1]?.();
  await step();
  expect(order).toEqual(["a1", "b1", "c1", "a2"]);
  ends[2]?.();
  ends[3]?.();
  await step();
  ends[4]?.();
  await Promise.all(all);
  expect(order).toEqual(["a1", "b1", "c1", "a2", "a3"]);
});
