import { setImmediate as nextTurn } from "node:timers/promises";
import { expect, onTestFinished, test } from "vitest";
import { Watcher } from "./watcher.ts";

const { signal } = new AbortController();

test("polls all watched rows together, and wakes the readers of changed rows", async () => {
  const states = new Map([
    ["a", "1"],
    ["b", "1"],
  ]);
  const looks: string[][] = [];
  const watcher = new Watcher<string>(5, async (ids) => {
    looks.push([...ids]);
    return states;
  });
  const watches = ["a", "a", "b"].map((id) => watcher.watch(id));
  onTestFinished(() => watches.forEach((watch) => watch.end()));
  // The state of a row is unknown before its first poll.
  await Promise.all(watches.map((watch) => watch.next(signal)));
  expect(looks[0]).toEqual(["a", "b"]);
  const woken: number[] = [];
  const all = watches.map((watch, place) => watch.next(signal).then(() => woken.push(place)));
  states.set("a", "2");
  await Promise.all(all.slice(0, 2));
  const seen = looks.length;
  await expect.poll(() => looks.length).toBeGreaterThan(seen + 2);
  expect(woken).toEqual([0, 1]);
  watcher.notify("b", "news");
  await all[2];
  expect(woken).toEqual([0, 1, 2]);
});

test("shares a read between readers at the same position until the row changes", async () => {
  const watcher = new Watcher(60_000, async () => []);
  const [one, two] = [watcher.watch("a"), watcher.watch("a")];
  const reads: (() => void)[] = [];
  const read = () => new Promise<number>((resolve) => reads.push(() => resolve(reads.length)));
  const before = [one.read("7", read), two.read("7", read), two.read("8", read)];
  expect(reads).toHaveLength(2);
  watcher.notify("a");
  // This read may have begun before the change.
  const after = one.read("7", read);
  expect(reads).toHaveLength(3);
  reads.forEach((finish) => finish());
  await Promise.all([...before, after]);
  const later = two.read("7", read);
  expect(reads).toHaveLength(4);
  reads[3]!();
  await later;
  one.end();
  two.end();
});

test("stops waiting when the signal aborts, and stops polling without watches", async () => {
  let looks = 0;
  const watcher = new Watcher(5, async () => {
    looks += 1;
    return [];
  });
  const watch = watcher.watch("a");
  const gone = new AbortController();
  await watch.next(signal);
  const waiting = watch.next(gone.signal);
  gone.abort();
  expect(await waiting).toBeUndefined();
  watch.end();
  await nextTurn();
  const seen = looks;
  await new Promise((resolve) => setTimeout(resolve, 30));
  expect(looks).toBe(seen);
});
