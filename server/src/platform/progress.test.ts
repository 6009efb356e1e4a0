import { expect, test } from "vitest";
import { type Progress, ProgressWriter } from "./progress.ts";

/** A fake table whose writes end when the test releases them. */
function table() {
  const rows: Progress<string>[] = [];
  const ends: (() => void)[] = [];
  const write = async (progress: Progress<string>) => {
    rows.push(progress);
    await new Promise<void>((resolve) => ends.push(resolve));
  };
  return { rows, endWrite: () => ends.shift()?.(), writer: new ProgressWriter(write) };
}

test("writes the newest progress after a running write, and drops the progress in between", async () => {
  const { rows, endWrite, writer } = table();
  const done = writer.set("build", 1, "one");
  for (let n = 2; n <= 50; n += 1) void writer.set("build", n, `line ${n}`);
  endWrite();
  await expect.poll(() => rows.length).toBe(2);
  endWrite();
  await done;
  expect(rows.map(({ message }) => message)).toEqual(["one", "line 50"]);
});

test("writes nothing for equal progress, and does not lower the percent", async () => {
  const rows: Progress<string>[] = [];
  const writer = new ProgressWriter<string>(async (progress) => void rows.push(progress));
  await writer.set("build", 40, "RUN npm ci");
  await writer.set("build", 40, "RUN npm ci");
  await writer.within("build", { from: 10, to: 20 }, 0.5, "COPY . .");
  expect(rows).toEqual([
    { step: "build", percent: 40, message: "RUN npm ci" },
    { step: "build", percent: 40, message: "COPY . ." },
  ]);
});

test("continues after a failed write, and stores at most 200 characters without NUL", async () => {
  const rows: Progress<string>[] = [];
  let fails = true;
  const writer = new ProgressWriter<string>(async (progress) => {
    if (fails) throw new Error("no database");
    rows.push(progress);
  });
  await writer.set("build", 1, "lost");
  fails = false;
  await writer.set("build", 2, `\0${"x".repeat(5000)}`);
  expect(rows).toEqual([{ step: "build", percent: 2, message: "x".repeat(200) }]);
});
