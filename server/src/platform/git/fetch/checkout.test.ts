/** Checkouts of hosted repositories, and of hostile commits. */
import { lstat, readdir, readFile, readlink } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { DomainError } from "#lib/errors.ts";
import { makePerson } from "../../../../test/factories.ts";
import { testDatabase } from "../../../../test/harness.ts";
import { checkout, type CheckoutInput } from "./checkout.ts";
import { repositoriesDirectory, repositoryDirectory } from "../git.ts";
import { createRepository, removeRepository } from "../hosting/repositories.ts";
import {
  commitFiles,
  commitIndex,
  commitTree,
  gitApp,
  makeProject,
  temporary,
  userGit,
} from "../testing/git-app.ts";

const { db } = await testDatabase();
const app = await gitApp(db, { gitCheckoutMaxMb: "8" });
const { workspace } = await makePerson(db);

async function hostedProject() {
  const project = await makeProject(app, workspace.id);
  return { project, repository: repositoryDirectory(app, project.id) };
}

const input = (into: string, more: Partial<CheckoutInput> = {}): CheckoutInput => ({
  branch: "main",
  sha: null,
  into,
  log: () => {},
  signal: new AbortController().signal,
  ...more,
});

const refusal = (work: Promise<unknown>) =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof DomainError ? error.code : error),
  );

test("checks out the newest commit of a branch as a plain directory, without leftover files", async () => {
  const { project, repository } = await hostedProject();
  await commitFiles(repository, "main", { "index.html": "one" }, "first");
  const sha = await commitFiles(
    repository,
    "main",
    { "index.html": "two", "a/b.txt": "deep" },
    "Second\n\nlonger\u0007",
  );
  const into = join(await temporary(), "work");
  expect(await checkout(app, project, input(into))).toEqual({
    sha,
    message: "Second\n\nlonger",
    author: "Ada <ada@example.test>",
  });
  expect(await readFile(join(into, "index.html"), "utf8")).toBe("two");
  expect((await readdir(into)).toSorted()).toEqual(["a", "index.html"]);
  expect(await readdir(join(repositoriesDirectory(app), "checkouts"))).toEqual([]);
});

test("checks out a commit by its id, and names a missing commit in the error", async () => {
  const { project, repository } = await hostedProject();
  const first = await commitFiles(repository, "main", { f: "one" });
  await commitFiles(repository, "main", { f: "two" });
  const into = await temporary();
  expect(await checkout(app, project, input(into, { sha: first }))).toMatchObject({ sha: first });
  expect(await readFile(join(into, "f"), "utf8")).toBe("one");
  const missing = "0123456789012345678901234567890123456789";
  expect(await refusal(checkout(app, project, input(into, { sha: missing })))).toBe("commit_not_found");
});

test("checks out the commit of a tag, annotated or not, and refuses a tag without a commit", async () => {
  const { project, repository } = await hostedProject();
  const first = await commitFiles(repository, "main", { f: "one" });
  await userGit(repository, ["tag", "light", first]);
  await userGit(repository, ["tag", "--annotate", "--message", "release", "v1", first]);
  await commitFiles(repository, "main", { f: "two" });
  const { stdout } = await userGit(repository, ["rev-parse", `${first}:f`]);
  await userGit(repository, ["tag", "file", stdout.trim()]);
  for (const tag of ["light", "v1"]) {
    const into = await temporary();
    expect(await checkout(app, project, input(into, { tag }))).toMatchObject({ sha: first });
    expect(await readFile(join(into, "f"), "utf8")).toBe("one");
  }
  const into = await temporary();
  for (const tag of ["none", "file", "main", "--all", "a..b"])
    expect(await refusal(checkout(app, project, input(into, { tag })))).toBe("tag_not_found");
});

test("refuses an empty repository, a missing branch, and names that look like options", async () => {
  const { project, repository } = await hostedProject();
  const into = await temporary();
  expect(await refusal(checkout(app, project, input(into)))).toBe("repository_empty");
  await commitFiles(repository, "main", { f: "one" });
  for (const branch of [
    "other",
    "--upload-pack=touch /tmp/x",
    "-f",
    "a..b",
    "main:refs/heads/x",
    "@",
    "a\nb",
    "",
  ])
    expect(await refusal(checkout(app, project, input(into, { branch })))).toBe("branch_not_found");
  for (const sha of ["--all", "HEAD", "main", "abc"])
    expect(await refusal(checkout(app, project, input(into, { sha })))).toBe("commit_not_found");
});

test("keeps symlinks, and writes hooks, attributes and configuration as plain files", async () => {
  const { project, repository } = await hostedProject();
  const env = { GIT_INDEX_FILE: join(repository, "links") };
  const add = async (mode: string, path: string, text: string) => {
    const { stdout } = await userGit(repository, ["hash-object", "-w", "--stdin"], { stdin: text });
    await userGit(repository, ["update-index", "--add", "--cacheinfo", `${mode},${stdout.trim()},${path}`], {
      env,
    });
  };
  await add("120000", "passwd", "/etc/passwd");
  await add("100644", ".gitattributes", "* filter=evil\n*.bin filter=lfs diff=lfs\n");
  await add("100755", "run.sh", "#!/bin/sh\n");
  await commitIndex(repository, "main", env);
  const into = await temporary();
  const lines: string[] = [];
  await checkout(app, project, input(into, { log: (text) => void lines.push(text) }));
  expect((await lstat(join(into, "passwd"))).isSymbolicLink()).toBe(true);
  expect(await readlink(join(into, "passwd"))).toBe("/etc/passwd");
  expect((await lstat(join(into, "run.sh"))).mode & 0o111).not.toBe(0);
  expect(lines.join("")).toContain("Git LFS");
});

test("aborts before it writes a tree of a billion files that a pack of a few kilobytes contains", async () => {
  const { project, repository } = await hostedProject();
  const { stdout } = await userGit(repository, ["hash-object", "-w", "--stdin"], { stdin: "x" });
  let entry = `100644 blob ${stdout.trim()}`;
  let tree = "";
  for (let level = 0; level < 9; level += 1) {
    const listing = Array.from({ length: 10 }, (_, n) => `${entry}\tf${n}`).join("\n");
    tree = (await userGit(repository, ["mktree"], { stdin: `${listing}\n` })).stdout.trim();
    entry = `040000 tree ${tree}`;
  }
  await commitTree(repository, "main", tree);
  const into = await temporary();
  expect(await refusal(checkout(app, project, input(into)))).toBe("repository_too_large");
  expect(await readdir(into)).toEqual([]);
});

test("aborts before it writes files whose total size exceeds the limit", async () => {
  const { project, repository } = await hostedProject();
  const half = "x".repeat(3 * 1024 ** 2);
  await commitFiles(repository, "main", { a: half, b: half, c: half });
  const into = await temporary();
  expect(await refusal(checkout(app, project, input(into)))).toBe("repository_too_large");
  expect(await readdir(into)).toEqual([]);
});

test("refuses a submodule by file path or by program, and leaves this host's files untouched", async () => {
  for (const url of [
    "file:///etc",
    "/etc",
    "../other",
    "ext::sh -c id",
    "-u",
    "https://u:p@x.test/a",
    "git://x/y",
  ]) {
    const { project, repository } = await hostedProject();
    const env = { GIT_INDEX_FILE: join(repository, "modules") };
    const modules = `[submodule "m"]\n\tpath = m\n\turl = ${url}\n\tupdate = !touch /nonexistent\n`;
    const { stdout } = await userGit(repository, ["hash-object", "-w", "--stdin"], { stdin: modules });
    const file = `100644,${stdout.trim()},.gitmodules`;
    await userGit(repository, ["update-index", "--add", "--cacheinfo", file], { env });
    const link = `160000,${"1".repeat(40)},m`;
    await userGit(repository, ["update-index", "--add", "--cacheinfo", link], { env });
    await commitIndex(repository, "main", env);
    expect([url, await refusal(checkout(app, project, input(await temporary())))]).toEqual([
      url,
      "repository_refused",
    ]);
  }
});

test("aborts a checkout when its signal aborts", async () => {
  const { project, repository } = await hostedProject();
  await commitFiles(repository, "main", { f: "one" });
  const signal = AbortSignal.abort(new Error("cancelled"));
  await expect(checkout(app, project, input(await temporary(), { signal }))).rejects.toThrow("cancelled");
});

test("creates a repository and removes it, repeatedly", async () => {
  const { project, repository } = await hostedProject();
  await commitFiles(repository, "main", { f: "one" });
  await createRepository(app, project.id);
  expect((await userGit(repository, ["rev-parse", "--verify", "main"])).code).toBe(0);
  await removeRepository(app, project.id);
  await removeRepository(app, project.id);
  await expect(lstat(repository)).rejects.toThrow("ENOENT");
});
