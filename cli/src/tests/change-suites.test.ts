import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { run } from "../lib/run.ts";
import { changedSuites, findChangedFiles, findReachedTests } from "./change-suites.ts";

async function repository(): Promise<{ root: string; git: (...args: string[]) => Promise<void> }> {
  const root = mkdtempSync(path.join(tmpdir(), "kontor-changed-"));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  const settings = ["user.name=Test", "user.email=test@example.test", "core.hooksPath=/dev/null"];
  const git = async (...args: string[]): Promise<void> => {
    const { code, output } = await run(["git", ...settings.flatMap((setting) => ["-c", setting]), ...args], {
      cwd: root,
    });
    if (code !== 0) throw new Error(output);
  };
  await git("init", "--quiet", "--initial-branch=main");
  for (const name of ["old.ts", "edited.ts", "deleted.ts"]) writeFileSync(path.join(root, name), name);
  writeFileSync(path.join(root, ".gitignore"), "ignored.ts\n");
  await git("add", ".");
  await git("commit", "--quiet", "-m", "test: begin");
  return { root, git };
}

test("lists files that were edited, deleted, added or committed since the merge base with main", async () => {
  const { root, git } = await repository();
  await git("switch", "--quiet", "-c", "work");
  writeFileSync(path.join(root, "committed.ts"), "");
  await git("add", ".");
  await git("commit", "--quiet", "-m", "test: add a file");
  for (const name of ["edited.ts", "new.ts", "ignored.ts"]) writeFileSync(path.join(root, name), "new");
  rmSync(path.join(root, "deleted.ts"));
  expect(await findChangedFiles(root)).toEqual(["committed.ts", "deleted.ts", "edited.ts", "new.ts"]);
});

test("lists changed files in a repository without a branch main", async () => {
  const { root, git } = await repository();
  await git("branch", "--quiet", "-m", "other");
  writeFileSync(path.join(root, "new.ts"), "new");
  expect(await findChangedFiles(root)).toEqual(["new.ts"]);
});

test("refuses a directory without a repository, and suggests kontor check", async () => {
  const root = mkdtempSync(path.join(tmpdir(), "kontor-changed-"));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  await expect(findChangedFiles(root)).rejects.toThrow("kontor check");
});

const sources = new Map([
  ["server/src/a/leaf.ts", ""],
  ["server/src/a/leaf.test.ts", 'import "./leaf.ts";'],
  ["server/src/a/leaf.host.test.ts", 'import "./leaf.ts";'],
  ["server/src/a/routes.ts", 'import "./leaf.ts";'],
  ["server/src/a/routes.test.ts", 'import "./routes.ts"; read("leaf.json");'],
  ["server/src/a/api.ts", 'import "./routes.ts";'],
  ["server/src/whole.test.ts", 'import "./a/api.ts";'],
  ["e2e/a.e2e.test.ts", 'import "../server/src/a/leaf.ts";'],
]);

test("finds the unit tests of a changed module up to its API, nearest first", () => {
  expect(findReachedTests(sources, ["server/src/a/leaf.ts"])).toEqual({
    files: ["server/src/a/leaf.test.ts", "server/src/a/routes.test.ts"],
    omitted: 0,
  });
  expect(findReachedTests(sources, ["server/src/a/api.ts"]).files).toEqual(["server/src/whole.test.ts"]);
});

test("finds a changed test, and tests that name a changed data file", () => {
  expect(findReachedTests(sources, ["server/src/whole.test.ts"]).files).toEqual(["server/src/whole.test.ts"]);
  expect(findReachedTests(sources, ["templates/leaf.json"]).files).toEqual(["server/src/a/routes.test.ts"]);
});

test("keeps the nearest tests of a module that many tests import, and counts the omitted tests", () => {
  const many = new Map(sources);
  for (let number = 0; number < 40; number += 1)
    many.set(`server/src/b/${number}.test.ts`, 'import "../a/routes.ts";');
  const reached = findReachedTests(many, ["server/src/a/leaf.ts"]);
  expect(reached.files).toHaveLength(10);
  expect(reached.files[0]).toBe("server/src/a/leaf.test.ts");
  expect(reached.omitted).toBe(32);
});

test("checks only types if no file changed, and the API documents if a source file of the server changed", async () => {
  const names = async (...changed: string[]) => (await changedSuites(changed)).suites.map(({ name }) => name);
  expect(await names()).toEqual(["types"]);
  expect(await names("docs/sandbox.md")).toContain("format");
  expect(await names("server/src/sandbox/pty/attach.ts")).toEqual([
    "format",
    "lint and layers",
    "types",
    "generated: OpenAPI documents",
    "units",
  ]);
});
