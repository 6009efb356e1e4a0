/**
 * Checks out one commit of a project as a plain directory of files, without `.git`. No file of the checkout is run.
 * Symlinks stay symlinks, so readers of the directory must not follow them.
 *
 * Each checkout fetches the objects into its own temporary repository; a hosted repository is only read. Submodules are
 * fetched by the same rules, each from its own address at its own commit. Git LFS files stay pointers.
 */
import { lstat, mkdir, mkdtemp, readFile, realpath, rm, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import type { App } from "#app.ts";
import {
  branchNotFound,
  commitNotFound,
  repositoryEmpty,
  repositoryRefused,
  tagNotFound,
} from "../errors.ts";
import { Fetcher, type CommitRef } from "./fetch.ts";
import { checkoutsDirectory, git, mebibyte, repositoryDirectory, timeoutMsOf } from "../git.ts";
import { isBranchName, isCommitId } from "../names.ts";
import { parseRemote, type Remote, resolveRemote } from "./remotes.ts";
import { commitOfTag, headsOf } from "../hosting/repositories.ts";
import type { ProjectRow } from "../store.ts";
import { type Budget, maxFiles, measureTree, type Submodule } from "./tree.ts";

export type CheckoutNeeds = Pick<App, "config" | "db" | "secrets">;

export interface CheckoutInput {
  branch: string;
  /** Full id of the commit. Null selects the tag's commit, or the newest commit of the branch. */
  sha: string | null;
  tag?: string | null;
  /** Target directory, which is created if it is missing. */
  into: string;
  log: (text: string) => void | Promise<void>;
  signal: AbortSignal;
}

export interface Commit {
  sha: string;
  /** Message of the commit, at most 4,000 characters. */
  message: string;
  /** Author in the form `Name <address>`. */
  author: string;
}

const checkoutPrefix = "checkout-";
const maxSubmodules = 50;
const maxSubmoduleDepth = 5;

/** Removes the unfinished checkouts of an earlier server. */
export async function sweepCheckouts(app: Pick<App, "config">): Promise<void> {
  await rm(checkoutsDirectory(app), { recursive: true, force: true });
}

/**
 * Checks out a commit. Rejects with an error of errors.ts, or with the signal's reason. After a failure, the caller
 * removes the content of `into`.
 */
export async function checkout(
  app: CheckoutNeeds,
  project: ProjectRow,
  { branch, sha, tag = null, into, log, signal }: CheckoutInput,
): Promise<Commit> {
  if (!isBranchName(branch)) throw branchNotFound(branch);
  if (sha !== null && !isCommitId(sha)) throw commitNotFound(sha);
  if (tag !== null && !isBranchName(tag)) throw tagNotFound(tag);
  const until = Date.now() + timeoutMsOf(app);
  const parent = checkoutsDirectory(app);
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const scratch = await mkdtemp(join(parent, checkoutPrefix));
  const limitBytes = app.config.gitCheckoutMaxMb * mebibyte;
  const context = {
    project,
    scratch,
    signal,
    deadline: { timeoutMs: () => Math.max(1, until - Date.now()) },
  };
  const fetcher = new Fetcher(app, context);
  const work: Work = {
    ...context,
    app,
    fetcher,
    log,
    limitBytes,
    budget: { files: maxFiles, bytes: limitBytes },
    submodules: 0,
  };
  try {
    const gitDir = await initialise(work);
    const wanted: CommitRef = sha !== null ? { sha } : tag !== null ? { tag } : { branch };
    const remote = project.repo_url === null ? null : projectRemote(project.repo_url);
    await log(`Fetching ${remote?.address ?? "the hosted repository"} (${sha ?? tag ?? branch})\n`);
    const commit =
      remote === null
        ? await useHostedObjects(work, gitDir, wanted)
        : await fetcher.fetch(gitDir, remote, wanted, branch);
    await mkdir(into, { recursive: true });
    await write(work, { gitDir, sha: commit, into, remote, depth: 0 });
    return await describe(work, gitDir, commit);
  } catch (error) {
    // After an abort, the abort is the cause of any error.
    signal.throwIfAborted();
    throw error;
  } finally {
    await fetcher.close();
    await rm(scratch, { recursive: true, force: true, maxRetries: 3 });
  }
}

interface Work {
  app: CheckoutNeeds;
  project: ProjectRow;
  scratch: string;
  signal: AbortSignal;
  deadline: { timeoutMs: () => number };
  fetcher: Fetcher;
  log: CheckoutInput["log"];
  limitBytes: number;
  budget: Budget;
  /** Number of submodules found so far. */
  submodules: number;
}

interface Tree {
  gitDir: string;
  sha: string;
  into: string;
  /** Remote repository of the tree; null for a repository hosted here. */
  remote: Remote | null;
  depth: number;
}

function projectRemote(url: string): Remote {
  const remote = parseRemote(url);
  if (!remote) throw repositoryRefused("its address is neither https nor ssh.");
  return remote;
}

const call = ({ deadline, signal }: Work, gitDir: string) => ({
  cwd: gitDir,
  timeoutMs: deadline.timeoutMs(),
  signal,
});

async function initialise(work: Work): Promise<string> {
  const gitDir = await mkdtemp(join(work.scratch, "objects-"));
  await git(["init", "--quiet", "--bare", "--template=", "--", gitDir], call(work, "/"));
  return gitDir;
}

/** Lets git read the objects of the hosted repository, without a copy. */
async function useHostedObjects(work: Work, gitDir: string, wanted: CommitRef): Promise<string> {
  const heads = await headsOf(work.app, work.project.id);
  if (heads.size === 0) throw repositoryEmpty();
  const objects = join(repositoryDirectory(work.app, work.project.id), "objects");
  await mkdir(join(gitDir, "objects", "info"), { recursive: true });
  await writeFile(join(gitDir, "objects", "info", "alternates"), `${objects}\n`);
  if ("branch" in wanted) {
    const sha = heads.get(wanted.branch);
    if (sha === undefined) throw branchNotFound(wanted.branch);
    return sha;
  }
  if ("tag" in wanted) {
    const found = await commitOfTag(work.app, work.project.id, wanted.tag);
    if (found === undefined) throw tagNotFound(wanted.tag);
    return found;
  }
  const args = ["cat-file", "-e", `${wanted.sha}^{commit}`];
  const { code } = await git(args, { ...call(work, gitDir), okCodes: [0, 1, 128] });
  if (code !== 0) throw commitNotFound(wanted.sha);
  return wanted.sha;
}

async function write(work: Work, tree: Tree): Promise<void> {
  const { gitDir, sha, into } = tree;
  const submodules = await measureTree(gitDir, sha, work.budget, {
    timeoutMs: work.deadline.timeoutMs(),
    limitBytes: work.limitBytes,
    signal: work.signal,
  });
  await git(["checkout", "--quiet", "--force", "--detach", sha], {
    ...call(work, gitDir),
    settings: [
      ["core.bare", "false"],
      ["core.logAllRefUpdates", "false"],
      ["advice.detachedHead", "false"],
    ],
    env: { GIT_DIR: gitDir, GIT_WORK_TREE: into },
    fileBytes: work.limitBytes,
  });
  await warnOfPointers(work, into);
  if (submodules.length > 0) await writeSubmodules(work, tree, submodules);
}

async function writeSubmodules(work: Work, tree: Tree, found: readonly Submodule[]): Promise<void> {
  work.submodules += found.length;
  if (work.submodules > maxSubmodules || tree.depth >= maxSubmoduleDepth) {
    throw repositoryRefused(
      `it has more than ${maxSubmodules} submodules, or submodules nested deeper than ${maxSubmoduleDepth}.`,
    );
  }
  const addresses = await readAddresses(work, tree);
  for (const { path, sha } of found) {
    const text = addresses.get(path);
    if (text === undefined) {
      // Git itself skips submodules without an address in .gitmodules.
      await work.log(`warning: ${path} is a submodule without an address; it stays empty\n`);
      continue;
    }
    const remote = resolveRemote(tree.remote, text);
    if (!remote)
      throw repositoryRefused(`its submodule ${path} has an address that is neither https nor ssh.`);
    await work.log(`Fetching the submodule ${path} from ${remote.address}\n`);
    const gitDir = await initialise(work);
    const commit = await work.fetcher.fetch(gitDir, remote, { sha }, null);
    const into = await placeOf(tree.into, path);
    await write(work, { gitDir, sha: commit, into, remote, depth: tree.depth + 1 });
  }
}

/** Returns the address of each submodule by path, from the .gitmodules of the commit. */
async function readAddresses(work: Work, { gitDir, sha }: Tree): Promise<Map<string, string>> {
  const { stdout } = await git(["config", "--blob", `${sha}:.gitmodules`, "--list", "-z"], {
    ...call(work, gitDir),
    okCodes: [0, 1, 128],
    maxOutputBytes: mebibyte,
  });
  const byName = new Map<string, { path?: string; url?: string }>();
  for (const entry of stdout.split("\0")) {
    const [, name, key, value] = /^submodule\.(.+)\.(path|url)\n(.*)$/s.exec(entry) ?? [];
    if (name === undefined || key === undefined || value === undefined) continue;
    byName.set(name, { ...byName.get(name), [key]: value });
  }
  const addresses = new Map<string, string>();
  for (const { path, url } of byName.values()) {
    if (path !== undefined && url !== undefined) addresses.set(path.replace(/\/+$/, ""), url);
  }
  return addresses;
}

/** Returns the directory of a submodule. Throws for a path that leaves the checkout, or leads through a symlink. */
async function placeOf(into: string, path: string): Promise<string> {
  const place = resolve(into, path);
  await mkdir(dirname(place), { recursive: true });
  const [root, parent] = await Promise.all([realpath(into), realpath(dirname(place))]);
  const isBelow = parent === root || parent.startsWith(`${root}/`);
  const isPlain = isBelow && parent === join(root, dirname(path));
  const there = await lstat(place).catch(() => undefined);
  if (!isPlain || (there && !there.isDirectory())) {
    throw repositoryRefused(`its submodule ${path} overlaps a file or leaves the repository.`);
  }
  await mkdir(place, { recursive: true });
  return place;
}

/**
 * Logs a warning for Git LFS files, which are small pointer texts here. A build that needs their content fails with a
 * misleading error.
 */
async function warnOfPointers(work: Work, into: string): Promise<void> {
  const attributes = join(into, ".gitattributes");
  const facts = await lstat(attributes).catch(() => undefined);
  if (!facts?.isFile() || facts.size > mebibyte) return;
  if (!/\bfilter=lfs\b/.test(await readFile(attributes, "utf8"))) return;
  await work.log("warning: Git LFS files are not fetched; this build contains their pointers instead\n");
}

async function describe(work: Work, gitDir: string, sha: string): Promise<Commit> {
  const args = ["log", "-1", "--no-show-signature", "--format=%an <%ae>%x00%B", sha];
  const { stdout } = await git(args, { ...call(work, gitDir), maxOutputBytes: mebibyte });
  const [author = "", message = ""] = stdout.split("\0");
  return { sha, message: plain(message).trim().slice(0, 4000), author: plain(author).trim().slice(0, 200) };
}

/** Returns text without control characters. PostgreSQL stores no NUL, and a terminal interprets control characters. */
function plain(text: string): string {
  // oxlint-disable-next-line no-control-regex -- the control characters to remove
  return text.toWellFormed().replaceAll(/[\u0000-\u0008\u000b-\u001f\u007f]/g, "");
}
