import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { inProduct } from "../lib/places.ts";
import { run } from "../lib/run.ts";

const hook = inProduct(".githooks/commit-msg");

async function judge(message: string): Promise<{ code: number; output: string }> {
  const folder = mkdtempSync(path.join(tmpdir(), "kontor-commit-msg-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const file = path.join(folder, "COMMIT_EDITMSG");
  writeFileSync(file, message);
  return await run([hook, file]);
}

test.each([
  "feat(sandbox): stream exec output",
  "fix: refuse a body of several megabytes",
  "refactor(api)!: rename a field\n\nA body may have any length, and ends with a full stop.",
  "\n# A comment of git\ndocs(add-ons): describe restores\n# Please enter the commit message",
  `test: ${"ä".repeat(66)}`,
  "Merge branch 'work'",
  'Revert "feat: add a thing"',
  "fixup! feat: add a thing",
])("accepts the message %j", async (message) => {
  expect(await judge(message)).toEqual({ code: 0, output: "" });
});

test.each([
  ["what was said is kept", "has none of these types: build chore"],
  ["", "has none of these types"],
  ["feature: add a thing", "has none of these types"],
  ["feat add a thing", "has none of these types"],
  ["feat(Sandbox): add a thing", "has none of these types"],
  ["feat: ", "has none of these types"],
  [`test: ${"ä".repeat(67)}`, "has 73 characters; at most 72"],
  ["feat: add a thing.", "ends with a full stop"],
])("refuses the message %j, and names the cause and the expected form", async (message, cause) => {
  const { code, output } = await judge(message);
  expect(code).toBe(1);
  expect(output).toContain(cause);
  expect(output).toContain("feat(sandbox): stream exec output");
});

test("git refuses a commit when core.hooksPath names the hook's folder", async () => {
  const root = mkdtempSync(path.join(tmpdir(), "kontor-commit-msg-"));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  const settings = ["user.name=Test", "user.email=test@example.test", `core.hooksPath=${path.dirname(hook)}`];
  const git = async (...args: string[]) =>
    (await run(["git", ...settings.flatMap((setting) => ["-c", setting]), ...args], { cwd: root })).code;
  expect(await git("init", "--quiet")).toBe(0);
  expect(await git("commit", "--quiet", "--allow-empty", "-m", "some changes")).not.toBe(0);
  expect(await git("commit", "--quiet", "--allow-empty", "-m", "chore: begin")).toBe(0);
});
