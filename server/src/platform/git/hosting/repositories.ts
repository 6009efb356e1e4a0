/** Hosted bare repositories. Each project has one, which is created and removed with the project. */
import { mkdir, readdir, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type { App } from "#app.ts";
import { git, repositoriesDirectory, repositoryDirectory } from "../git.ts";

type Needs = Pick<App, "config">;

const timeoutMs = 60_000;

/** Creates the repository if it is missing. Completes an unfinished repository. */
export async function createRepository(app: Needs, projectId: string): Promise<void> {
  const directory = repositoryDirectory(app, projectId);
  await mkdir(repositoriesDirectory(app), { recursive: true, mode: 0o700 });
  const args = ["init", "--quiet", "--bare", "--template=", "--initial-branch=main", "--", directory];
  await git(args, { cwd: "/", timeoutMs });
}

/** Removes the repository. Does nothing if it is missing. */
export async function removeRepository(app: Needs, projectId: string): Promise<void> {
  await rm(repositoryDirectory(app, projectId), { recursive: true, force: true, maxRetries: 3 });
}

/** Removes unfinished objects of pushes to an earlier server. Must not run during a push. */
export async function sweepRepository(app: Needs, projectId: string): Promise<void> {
  const objects = join(repositoryDirectory(app, projectId), "objects");
  for (const name of await readdir(objects)) {
    if (name.startsWith("tmp_objdir-")) await rm(join(objects, name), { recursive: true, force: true });
  }
}

/** Sets the default branch of clones to the project's branch. Git replaces the file atomically. */
export async function pointHead(app: Needs, projectId: string, branch: string): Promise<void> {
  const cwd = repositoryDirectory(app, projectId);
  await git(["symbolic-ref", "HEAD", `refs/heads/${branch}`], { cwd, timeoutMs });
}

/** Returns the repository's commits by branch. Empty before the first push. */
export async function headsOf(app: Needs, projectId: string): Promise<Map<string, string>> {
  const cwd = repositoryDirectory(app, projectId);
  const format = "--format=%(objectname) %(refname:lstrip=2)";
  const { stdout } = await git(["for-each-ref", format, "refs/heads"], {
    cwd,
    timeoutMs,
    maxOutputBytes: 64 * 1024 ** 2,
  });
  const heads = new Map<string, string>();
  for (const line of stdout.split("\n")) {
    const [, sha, branch] = /^([0-9a-f]{40,64}) (.+)$/.exec(line) ?? [];
    if (sha !== undefined && branch !== undefined) heads.set(branch, sha);
  }
  return heads;
}

/** Returns the commit of a tag, annotated or not; undefined if the tag does not exist. */
export async function commitOfTag(app: Needs, projectId: string, tag: string): Promise<string | undefined> {
  const cwd = repositoryDirectory(app, projectId);
  const args = ["rev-parse", "--verify", "--quiet", "--end-of-options", `refs/tags/${tag}^{commit}`];
  const { code, stdout } = await git(args, { cwd, timeoutMs, okCodes: [0, 1, 128] });
  return code === 0 ? stdout.trim() : undefined;
}

/** Returns the bytes on disk of the repository's files. */
export async function sizeOf(app: Needs, projectId: string): Promise<number> {
  const directory = repositoryDirectory(app, projectId);
  let bytes = 0;
  for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    // Whole blocks count, because each small file takes one. A concurrent push or clean-up may remove files.
    bytes += await stat(join(entry.parentPath, entry.name)).then(
      ({ blocks }) => blocks * 512,
      () => 0,
    );
  }
  return bytes;
}
