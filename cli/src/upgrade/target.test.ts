import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { run } from "../lib/run.ts";
import { checkRoom, missingMigrations } from "./checks.ts";
import { findTarget, followCommit, prepareCode, refuseChangedFiles, removeOldReleases } from "./target.ts";

const silent = { update: () => {}, done: () => {}, fail: () => {} };

async function git(directory: string, ...args: string[]): Promise<string> {
  const identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.test"];
  const { code, output } = await run(["git", ...identity, "-C", directory, ...args]);
  expect(code, output).toBe(0);
  return output.trim();
}

async function commit(directory: string, files: Record<string, string>): Promise<string> {
  for (const [name, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(directory, name)), { recursive: true });
    writeFileSync(path.join(directory, name), text, { mode: 0o755 });
  }
  await git(directory, "add", "--all");
  await git(directory, "commit", "--quiet", "--message=change");
  return git(directory, "rev-parse", "HEAD");
}

/** Makes a repository with the parts that an upgrade reads, and a clone that follows its branch `main`. */
async function makeCheckout(): Promise<{ origin: string; checkout: string; first: string }> {
  const place = realpathSync(mkdtempSync(path.join(tmpdir(), "kontor-target-")));
  onTestFinished(() => rmSync(place, { recursive: true }));
  const origin = path.join(place, "origin");
  const checkout = path.join(place, "checkout");
  mkdirSync(origin);
  await git(origin, "init", "--quiet", "--initial-branch=main");
  const first = await commit(origin, {
    ".gitignore": ".cache/\nnode_modules/\n",
    "package-lock.json": "{}",
    "server/src/main.ts": "",
    "server/migrations/0001_first.sql": "select 1;\n",
    kontor: '#!/bin/sh\necho "$@" > prepared\n',
  });
  await git(place, "clone", "--quiet", origin, checkout);
  return { origin, checkout, first };
}

test("finds the newest commit of the checkout's branch, a tag, another branch and a commit, with their migrations", async () => {
  const { origin, checkout, first } = await makeCheckout();
  await git(origin, "tag", "v1");
  const second = await commit(origin, { "server/migrations/0002_second.sql": "select 2;\n" });
  await git(origin, "branch", "next");
  const newest = await findTarget(checkout, undefined);
  expect(newest).toMatchObject({ commit: second, directory: path.join(checkout, ".cache/releases", second) });
  expect(newest.migrations).toEqual([
    { name: "0001_first.sql", sql: "select 1;\n" },
    { name: "0002_second.sql", sql: "select 2;\n" },
  ]);
  expect(missingMigrations({ sizeBytes: 1, migrations: new Map([["0001_first.sql", ""]]) }, newest)).toEqual([
    "0002_second.sql",
  ]);
  expect((await findTarget(checkout, "v1")).commit).toBe(first);
  expect((await findTarget(checkout, "next")).commit).toBe(second);
  expect((await findTarget(checkout, first.slice(0, 10))).commit).toBe(first);
  expect(await git(checkout, "rev-parse", "HEAD")).toBe(first);
});

test("refuses unknown names, and options in place of names", async () => {
  const { checkout } = await makeCheckout();
  for (const name of ["nothing", "deadbeef", "--upload-pack=touch x", "v1..v2", "HEAD:kontor", "", "\n"]) {
    await expect(findTarget(checkout, name), name).rejects.toThrow("is neither a commit, a tag or a branch");
  }
  expect(existsSync(path.join(checkout, "x"))).toBe(false);
  await git(checkout, "checkout", "--quiet", "--detach");
  await expect(findTarget(checkout, undefined)).rejects.toThrow("follows no branch");
});

test("refuses a checkout with changed files, and ignores untracked files", async () => {
  const { checkout } = await makeCheckout();
  writeFileSync(path.join(checkout, "notes"), "mine");
  await refuseChangedFiles(checkout);
  writeFileSync(path.join(checkout, "kontor"), "changed");
  await expect(refuseChangedFiles(checkout)).rejects.toThrow(`Files of ${checkout} are changed.`);
});

test("prepares a commit once in its own directory, and reuses the packages of an equal lockfile", async () => {
  const { origin, checkout } = await makeCheckout();
  mkdirSync(path.join(checkout, "node_modules"));
  writeFileSync(path.join(checkout, "node_modules/package"), "code");
  await commit(origin, { "server/src/main.ts": "new" });
  const target = await findTarget(checkout, undefined);
  mkdirSync(`${target.directory}.tmp-1`, { recursive: true });
  await prepareCode(checkout, target, silent);
  await prepareCode(checkout, target, silent);
  expect(readdirSync(path.join(checkout, ".cache/releases"))).toEqual([target.commit]);
  expect(readFileSync(path.join(target.directory, "server/src/main.ts"), "utf8")).toBe("new");
  expect(readFileSync(path.join(target.directory, "node_modules/package"), "utf8")).toBe("code");
  expect(readFileSync(path.join(target.directory, "prepared"), "utf8")).toBe("prepare\n");
  expect(readFileSync(path.join(checkout, "server/src/main.ts"), "utf8")).toBe("");
  removeOldReleases(checkout, [target.directory]);
  expect(existsSync(target.directory)).toBe(true);
  removeOldReleases(checkout, []);
  expect(existsSync(target.directory)).toBe(false);
});

test("reports the output of a set-up that failed", async () => {
  const { origin, checkout } = await makeCheckout();
  await commit(origin, { kontor: "#!/bin/sh\necho no compiler >&2\nexit 7\n" });
  await expect(prepareCode(checkout, await findTarget(checkout, undefined), silent)).rejects.toMatchObject({
    message: expect.stringContaining("exit code 7"),
    hint: "no compiler",
  });
});

test("fast-forwards a branch to the commit, and leaves the branch if it cannot be fast-forwarded", async () => {
  const { origin, checkout, first } = await makeCheckout();
  const second = await commit(origin, { "server/src/main.ts": "new" });
  await findTarget(checkout, undefined);
  expect(await followCommit(checkout, second)).toBe("its branch main moved forward");
  expect(await git(checkout, "symbolic-ref", "--short", "HEAD")).toBe("main");
  await commit(checkout, { "server/src/main.ts": "own" });
  await git(origin, "checkout", "--quiet", "-B", "other", first);
  const other = await commit(origin, { "server/src/main.ts": "other" });
  await findTarget(checkout, "other");
  expect(await followCommit(checkout, other)).toContain("without a branch");
  expect(await git(checkout, "rev-parse", "HEAD")).toBe(other);
});

test("accepts another directory of code unchanged, and refuses a directory without code", async () => {
  const { origin, checkout } = await makeCheckout();
  expect(await findTarget(checkout, origin)).toMatchObject({ directory: origin, commit: undefined });
  await expect(findTarget(checkout, path.join(origin, "server"))).rejects.toThrow(
    "no directory of Kontor's code",
  );
  await expect(findTarget(path.join(origin, "server"), undefined)).rejects.toThrow("is no git checkout");
});

test("refuses a disk that has too little space for two copies of the database", () => {
  const facts = { sizeBytes: Number.MAX_SAFE_INTEGER / 4, migrations: new Map<string, string>() };
  expect(() => checkRoom(tmpdir(), tmpdir(), facts)).toThrow(/two copies of the database may take \d+ MiB/);
});
