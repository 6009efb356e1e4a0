import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { engineFindings } from "./findings.ts";

/** A data directory whose settings name a runc that prints this text. */
function dataWithRunc(output: string): string {
  const data = mkdtempSync(path.join(tmpdir(), "kontor-doctor-"));
  onTestFinished(() => rmSync(data, { recursive: true, force: true }));
  const program = path.join(data, "runc");
  writeFileSync(program, `#!/bin/sh\necho '${output}'\n`, { mode: 0o755 });
  writeFileSync(path.join(data, "kontor.toml"), `runc_path = "${program}"\n`);
  return data;
}

test("lists the known holes of the runc named in the settings", async () => {
  const [version, hole, ...more] = await engineFindings("runc", dataWithRunc("runc version 1.3.5"));
  expect(version).toEqual({ name: "runc", ok: true, found: "1.3.5" });
  expect(hole).toMatchObject({ name: "runc CVE-2026-41579", advice: expect.stringContaining("runc_path") });
  expect(more).toEqual([]);
});

test("lists no hole of a fixed version", async () => {
  const found = await engineFindings("runc", dataWithRunc("runc version 1.4.3"));
  expect(found).toEqual([{ name: "runc", ok: true, found: "1.4.3" }]);
});

test("does not judge a version that it cannot parse", async () => {
  const [found] = await engineFindings("runc", dataWithRunc("something else"));
  expect(found).toMatchObject({ name: "runc", ok: null, found: "unknown" });
});
