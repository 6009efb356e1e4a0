import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { tee } from "./tee.ts";

const never = new AbortController().signal;

function countedContent(count: number) {
  const said = { given: 0, isLetGo: false };
  const content = (async function* () {
    try {
      for (; said.given < count; said.given++) yield Buffer.from([said.given]);
    } finally {
      said.isLetGo = true;
    }
  })();
  return { said, content };
}

async function collect(content: AsyncIterable<Buffer>): Promise<number[]> {
  return (await Array.fromAsync(content)).map((piece) => piece[0]!);
}

test("gives both readers all content, and makes the faster reader wait", async () => {
  const { said, content } = countedContent(50);
  const read = tee(content);
  const fast = collect(read(never));
  const slow: number[] = [];
  for await (const piece of read(never)) {
    slow.push(piece[0]!);
    await sleep(1);
    // The source is at most one piece ahead of the slower reader.
    expect(said.given - piece[0]!).toBeLessThanOrEqual(1);
  }
  expect(slow).toHaveLength(50);
  expect(await fast).toEqual(slow);
});

test("continues for one reader when the other stops, and closes the source when both have stopped", async () => {
  const { said, content } = countedContent(10);
  const read = tee(content);
  const rest = read(never);
  const all = (async () => {
    const got: Buffer[] = [];
    for await (const piece of rest) {
      got.push(piece);
      if (got.length === 8) break;
    }
    return got;
  })();
  for await (const _ of read(never)) break;
  expect(await all).toHaveLength(8);
  expect(said.isLetGo).toBe(true);
});

test("passes an error of the source to both readers", async () => {
  const read = tee(
    (async function* () {
      yield Buffer.from("a");
      throw new Error("cut");
    })(),
  );
  const ends = await Promise.allSettled([collect(read(never)), collect(read(never))]);
  expect(ends.map((end) => (end as PromiseRejectedResult).reason.message)).toEqual(["cut", "cut"]);
});

test("aborts a reader that waits for the other", async () => {
  const read = tee(countedContent(10).content);
  const ends = new AbortController();
  const waiting = collect(read(ends.signal));
  ends.abort(new Error("enough"));
  await expect(waiting).rejects.toThrow("enough");
});

test("skips no piece for one reader when the other is aborted while it waits", async () => {
  const { content } = countedContent(3);
  const read = tee(content);
  const ends = new AbortController();
  const waits = collect(read(ends.signal));
  ends.abort(new Error("enough"));
  await expect(waits).rejects.toThrow("enough");
  expect(await collect(read(never))).toEqual([0, 1, 2]);
});
