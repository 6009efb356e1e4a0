import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { LogTail, worthShowing } from "./log-tail.ts";

test("returns each complete line once, from the start of the watch", () => {
  const folder = mkdtempSync(path.join(tmpdir(), "kontor-tail-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  const file = path.join(folder, "server.log");
  writeFileSync(file, "of an earlier start\n");
  const tail = new LogTail(file, 20);
  onTestFinished(() => tail.close());
  appendFileSync(file, "one\ntw");
  expect(tail.lines()).toEqual(["one"]);
  appendFileSync(file, "o\n");
  expect(tail.lines()).toEqual(["two"]);
  expect(tail.lines()).toEqual([]);
});

test("shows warnings, errors and crashes, and hides all other lines", () => {
  expect(worthShowing('{"level":"info","msg":"request"}')).toBeUndefined();
  expect(worthShowing('{"level":"warn","msg":"slow"}')).toBe("warning: slow");
  expect(worthShowing('{"level":"error","msg":"failed","error":{"message":"no disk"}}')).toBe(
    "error: failed (no disk)",
  );
  expect(worthShowing("    at main (main.ts:1)")).toBe("    at main (main.ts:1)");
});
