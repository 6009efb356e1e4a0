import { appendFile, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { silentLog } from "../../../test/harness.ts";
import { type LogLine, LogRings } from "./log-rings.ts";

const directory = await mkdtemp(join(tmpdir(), "kontor-rings-"));
afterAll(() => rm(directory, { recursive: true, force: true }));
const small = { segmentBytes: 500, segments: 3 };

function open(): LogRings {
  return new LogRings({ directory, log: silentLog, options: small });
}

function line(text: string): LogLine {
  return { at: 1, stream: "stdout", text, deployment: "d" };
}

test("keeps the latest lines in order within the files of a ring, and reports that older lines were dropped", async () => {
  const ring = open().of("capped");
  for (let n = 1; n <= 100; n += 1) {
    await ring.append([line(`line ${n}`)]);
    await ring.flush();
  }
  const { lines, truncated } = await ring.tail(1000);
  expect(truncated).toBe(true);
  expect(lines.at(-1)).toMatchObject({ n: 100, text: "line 100" });
  expect(lines.map(({ n }) => n)).toEqual(lines.map((_, index) => (lines[0]?.n ?? 0) + index));
  expect(await readdir(join(directory, "capped"))).toHaveLength(small.segments);
});

test("continues after the last whole line when another process opens the ring, also after a torn line", async () => {
  const rings = open();
  await rings.of("torn").append([line("one"), line("two")]);
  await rings.close();
  const [file] = await readdir(join(directory, "torn"));
  await appendFile(join(directory, "torn", file ?? ""), '{"n":3,"at":1,"te');
  const ring = open().of("torn");
  await ring.append([line("three")]);
  expect((await ring.tail(10)).lines.map(({ n, text }) => [n, text])).toEqual([
    [1, "one"],
    [2, "two"],
    [3, "three"],
  ]);
});

test("yields the kept lines from a follower's position, then each new line once", async () => {
  const ring = open().of("followed");
  await ring.append([line("a"), line("b")]);
  const reader = new AbortController();
  const got: string[] = [];
  const reading = (async () => {
    for await (const { text } of ring.follow(1, reader.signal)) {
      got.push(text);
      if (text === "d") reader.abort();
    }
  })();
  await ring.append([line("c")]);
  await ring.append([line("d")]);
  await reading;
  expect(got).toEqual(["b", "c", "d"]);
});

test("rejects a name that could lead to another directory", () => {
  expect(() => open().of("../elsewhere")).toThrow("no name of a ring");
});
