import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { inProduct } from "../lib/places.ts";
import { buildEnclosure, engineFindings, userNamespaces } from "./findings.ts";

/** Creates a data directory that is removed after the test. */
function directory(): string {
  const data = mkdtempSync(path.join(tmpdir(), "kontor-doctor-"));
  onTestFinished(() => rmSync(data, { recursive: true, force: true }));
  return data;
}

/** Creates a data directory whose settings name a program that prints this text. */
function dataWith(name: "runc" | "buildah", output: string): string {
  const data = directory();
  const program = path.join(data, name);
  writeFileSync(program, `#!/bin/sh\necho '${output}'\n`, { mode: 0o755 });
  writeFileSync(path.join(data, "kontor.toml"), `${name}_path = "${program}"\n`);
  return data;
}

const dataWithRunc = (output: string) => dataWith("runc", output);

test("lists the known vulnerabilities of the runc that the settings name", async () => {
  const [version, hole, ...more] = await engineFindings("runc", dataWithRunc("runc version 1.3.5"));
  expect(version).toEqual({ name: "runc", ok: true, found: "1.3.5" });
  expect(hole).toMatchObject({ name: "runc CVE-2026-41579", advice: expect.stringContaining("runc_path") });
  expect(more).toEqual([]);
});

test("lists no vulnerability of a fixed version", async () => {
  const found = await engineFindings("runc", dataWithRunc("runc version 1.4.3"));
  expect(found).toEqual([{ name: "runc", ok: true, found: "1.4.3" }]);
});

test("does not judge a version that cannot be parsed", async () => {
  const [found] = await engineFindings("runc", dataWithRunc("something else"));
  expect(found).toMatchObject({ name: "runc", ok: null, found: "unknown" });
});

test("reports the version and the known vulnerabilities of the buildah that the settings name", async () => {
  const [version, hole] = await engineFindings(
    "buildah",
    dataWith("buildah", "buildah version 1.33.10 (image-spec 1.1.0)"),
  );
  expect(version).toEqual({ name: "buildah", ok: true, found: "1.33.10" });
  expect(hole).toMatchObject({ advice: expect.stringContaining("buildah_path") });
});

test.each([
  ["15732", { ok: true, found: "15732 at most" }],
  ["0", { ok: false, advice: expect.stringContaining("user.max_user_namespaces=") }],
  [null, { ok: false, found: "none" }],
])("judges a limit of %s user namespaces", (limit, expected) => {
  const root = directory();
  mkdirSync(path.join(root, "user"));
  if (limit !== null) writeFileSync(path.join(root, "user/max_user_namespaces"), `${limit}\n`);
  expect(userNamespaces(root)).toMatchObject(expected);
});

const canEnclose = process.getuid?.() === 0 && existsSync(inProduct("runtime/shim/build/kontor-shim"));
test.skipIf(!canEnclose)(
  "starts a trial enclosure on the data directory, and leaves no file behind",
  async () => {
    const data = directory();
    expect(await buildEnclosure(data)).toEqual({ ok: true, found: `works on ${data}` });
    expect(readdirSync(data)).toEqual([]);
  },
);
