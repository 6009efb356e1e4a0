import { expect, test } from "vitest";
import { FairQueue, RecentOwners, type Turn } from "./fair-queue.ts";

/** Starts the next entry. An entry's name is its owner and a number. */
function startNext(queue: FairQueue<string>): Turn<string> {
  const turn = queue.next();
  if (!turn) throw new Error("no entry may run now");
  return turn;
}

test("starts an owner's single entry before another owner's twenty waiting entries", () => {
  const queue = new FairQueue<string>({ limit: 1 });
  for (let n = 1; n <= 21; n += 1) queue.add("a", `a${n}`);
  const running = startNext(queue);
  queue.add("b", "b1");
  running.end();
  expect(startNext(queue).item).toBe("b1");
});

test("prefers the owner with the fewest running entries", () => {
  const queue = new FairQueue<string>({ limit: 3 });
  for (const name of ["a1", "a2", "a3", "b1", "b2"]) queue.add(name.slice(0, 1), name);
  expect([startNext(queue).item, startNext(queue).item, startNext(queue).item]).toEqual(["a1", "b1", "a2"]);
  expect(queue.next()).toBeUndefined();
});

test("does not let an owner that adds one entry at a time block another owner", () => {
  const queue = new FairQueue<string>({ limit: 1 });
  queue.add("b", "b1");
  queue.add("b", "b2");
  const order: string[] = [];
  for (let n = 1; n <= 4; n += 1) {
    queue.add("a", `a${n}`);
    const turn = startNext(queue);
    order.push(turn.item);
    turn.end();
  }
  expect(order).toEqual(["b1", "a1", "b2", "a2"]);
});

test("runs entries with the same key one after the other, beside the owner's other entries", () => {
  const queue = new FairQueue<string>({ limit: 3 });
  queue.add("a", "a1", "store");
  queue.add("a", "a2", "store");
  queue.add("a", "a3", "other store");
  const first = startNext(queue);
  expect([first.item, startNext(queue).item, queue.next()]).toEqual(["a1", "a3", undefined]);
  first.end();
  first.end();
  expect(startNext(queue).item).toBe("a2");
});

test("leaves one place free while another owner has recent work, and uses every place otherwise", () => {
  const queue = new FairQueue<string>({ limit: 2, keepsOneFree: true });
  for (const name of ["a1", "a2", "a3", "a4", "a5"]) queue.add("a", name);
  const turns = [startNext(queue), startNext(queue)];
  queue.add("b", "b1");
  turns[0]!.end();
  const other = startNext(queue);
  expect([other.item, queue.next()]).toEqual(["b1", undefined]);
  other.end();
  expect(queue.next()).toBeUndefined();
  queue.add("b", "b2");
  expect(startNext(queue).item).toBe("b2");
  turns[1]!.end();
  expect(startNext(queue).item).toBe("a3");
});

test("removes a waiting entry, and keeps a running one", () => {
  const queue = new FairQueue<string>({ limit: 1 });
  const removeFirst = queue.add("a", "a1");
  const removeSecond = queue.add("a", "a2");
  const turn = startNext(queue);
  expect([removeFirst(), removeSecond(), queue.isIdle]).toEqual([false, true, false]);
  turn.end();
  expect(queue.isIdle).toBe(true);
});

test("forgets the end of an owner's work after an hour", () => {
  let nowMs = 0;
  const recent = new RecentOwners(() => nowMs);
  recent.recordEnd("a");
  nowMs = 30 * 60_000;
  recent.recordEnd("b");
  recent.recordEnd("c");
  recent.recordEnd("b");
  expect(recent.list()).toEqual(["a", "c", "b"]);
  expect(recent.rank("b")).toBeGreaterThan(recent.rank("a"));
  nowMs = 60 * 60_000;
  expect([recent.list(), recent.rank("a")]).toEqual([["c", "b"], 0]);
});
