import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { claimInstance } from "./instance.ts";

function scratch(): string {
  const directory = mkdtempSync(join(tmpdir(), "kontor-instances-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  return directory;
}

test("a data directory keeps its number", () => {
  const directory = scratch();
  expect(claimInstance("/data/a", directory)).toBe(claimInstance("/data/a", directory));
});

test("64 data directories get 64 numbers, and the next one is told there are none left", () => {
  const directory = scratch();
  const numbers = new Set(Array.from({ length: 64 }, (_, n) => claimInstance(`/data/${n}`, directory)));
  expect(numbers.size).toBe(64);
  expect(readdirSync(directory)).toHaveLength(64);
  expect(() => claimInstance("/data/64", directory)).toThrow(/are taken/);
});
