import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { claimHostSlot } from "./host-slot.ts";

function scratch(): string {
  const directory = mkdtempSync(join(tmpdir(), "kontor-instances-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  return directory;
}

test("returns the same number again for the same data directory", () => {
  const directory = scratch();
  expect(claimHostSlot("/data/a", directory)).toBe(claimHostSlot("/data/a", directory));
});

test("keeps the number of a data directory when its preferred number becomes free", () => {
  const directory = scratch();
  const wanted = claimHostSlot("/data/a", directory);
  rmSync(join(directory, String(wanted)));
  writeFileSync(join(directory, String(wanted)), "/data/other");
  const second = claimHostSlot("/data/a", directory);
  expect(second).not.toBe(wanted);
  rmSync(join(directory, String(wanted)));
  expect(claimHostSlot("/data/a", directory)).toBe(second);
});

test("gives 60 data directories 60 numbers, and refuses the next directory", () => {
  const directory = scratch();
  const numbers = new Set(Array.from({ length: 60 }, (_, n) => claimHostSlot(`/data/${n}`, directory)));
  expect(numbers.size).toBe(60);
  expect(readdirSync(directory)).toHaveLength(60);
  expect(() => claimHostSlot("/data/60", directory)).toThrow(/are taken/);
});
