/**
 * The code to upgrade to: a commit of the checkout that the command belongs to, or another directory. A commit is
 * written into its own directory below `.cache/releases/`, with its packages and native programs, while the old code
 * still runs.
 */
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
} from "node:fs";
import path from "node:path";
import { readMigrations, type Migration } from "@kontor/server/db/migrate.ts";
import { Failure } from "../lib/failure.ts";
import { run } from "../lib/run.ts";
import type { StepView } from "../lib/steps-view.ts";

export interface Target {
  /** Name to print at the terminal. */
  name: string;
  /** Directory that holds the code after `prepare`. */
  directory: string;
  /** Commit of the target. Undefined for a directory. */
  commit: string | undefined;
  migrations: Migration[];
}

const mainFile = "server/src/main.ts";
const gitTimeoutMs = 60_000;
/** Timeout of a fetch: enough for the first fetch of a large repository over a slow line. */
const fetchTimeoutMs = 600_000;
const prepareTimeoutMs = 1_800_000;

/**
 * Resolves `--to`, or else the branch that the checkout follows. Fetches from the remote, and changes no file of the
 * checkout.
 */
export async function findTarget(checkout: string, to: string | undefined): Promise<Target> {
  if (to !== undefined && isDirectory(to)) return directoryTarget(to);
  if (!existsSync(path.join(checkout, ".git"))) {
    throw new Failure(`${checkout} is no git checkout.`, {
      hint: "Unpack the new code into a directory beside it, and name it: kontor upgrade --to DIR.",
    });
  }
  const commit = await resolveCommit(checkout, to);
  const git = gitIn(checkout);
  const subject = await git("log", "-1", "--format=%h %s", commit);
  const names = await git("ls-tree", "--name-only", commit, "server/migrations/");
  if ((await git("ls-tree", "--name-only", commit, mainFile)) === "") {
    throw new Failure(`The commit ${subject} has no ${mainFile}.`, { hint: "Name a commit of Kontor." });
  }
  const migrations: Migration[] = [];
  for (const file of names.split("\n").filter((name) => /\/\d{4}_.+\.sql$/.test(name))) {
    migrations.push({ name: path.basename(file), sql: await git("show", `${commit}:${file}`) });
  }
  return {
    name: subject,
    commit,
    directory: path.join(checkout, ".cache", "releases", commit),
    migrations,
  };
}

function directoryTarget(to: string): Target {
  const directory = realpathSync(to);
  if (!existsSync(path.join(directory, mainFile)) || !existsSync(path.join(directory, "kontor"))) {
    throw new Failure(`${directory} is no directory of Kontor's code.`, {
      hint: `It has no ${mainFile} or no file kontor. Name the directory that has both.`,
    });
  }
  const migrations = readMigrations(path.join(directory, "server/migrations"));
  return { name: directory, directory, commit: undefined, migrations };
}

function isDirectory(name: string): boolean {
  return statSync(name, { throwIfNoEntry: false })?.isDirectory() === true;
}

async function resolveCommit(checkout: string, to: string | undefined): Promise<string> {
  const git = gitIn(checkout);
  const find = async (name: string): Promise<string | undefined> =>
    (await tryGit(checkout, ["rev-parse", "--verify", "--quiet", "--end-of-options", `${name}^{commit}`])) ||
    undefined;
  if (to === undefined) {
    const upstream = await tryGit(checkout, [
      "rev-parse",
      "--abbrev-ref",
      "--symbolic-full-name",
      "@{upstream}",
    ]);
    if (!upstream) {
      throw new Failure("The checkout follows no branch of a remote.", {
        hint: "Name a commit, a tag or a directory: kontor upgrade --to NAME.",
      });
    }
    await git("fetch", "--quiet", "--tags", upstream.slice(0, upstream.indexOf("/")));
    return git("rev-parse", `${upstream}^{commit}`);
  }
  const known = /^[0-9a-f]{7,64}$/.test(to) ? await find(to) : undefined;
  if (known !== undefined) return known;
  for (const remote of (await git("remote")).split("\n").filter(Boolean)) {
    await git("fetch", "--quiet", "--tags", remote);
  }
  const found =
    (await find(`refs/tags/${to}`)) ?? (await find(`refs/remotes/origin/${to}`)) ?? (await find(to));
  if (found !== undefined) return found;
  throw new Failure(`${to} is neither a commit, a tag or a branch of ${checkout}, nor a directory.`, {
    hint: "git log, git tag and git branch --remotes list the known ones.",
  });
}

/** Throws if the checkout has changes that the move to another commit could destroy. */
export async function refuseChangedFiles(checkout: string): Promise<void> {
  const changed = await gitIn(checkout)("status", "--porcelain", "--untracked-files=no");
  if (changed === "") return;
  throw new Failure(`Files of ${checkout} are changed.`, {
    hint: `${changed.split("\n").slice(0, 10).join("\n")}\nCommit them, or put them back with git checkout.`,
  });
}

/** Completes the target's directory: its files, its packages, and its parts of the set-up on this host. */
export async function prepareCode(checkout: string, target: Target, view: StepView): Promise<void> {
  const { commit, directory } = target;
  if (commit !== undefined && !existsSync(directory)) {
    view.update("files of the commit");
    await checkOut(checkout, commit, directory);
  }
  view.update("packages and native programs");
  const { code, output } = await run([path.join(directory, "kontor"), "prepare"], {
    cwd: directory,
    onLine: (line) => view.update(line.trim()),
    timeoutMs: prepareTimeoutMs,
  });
  if (code === 0) return;
  throw new Failure(`The new code could not be prepared (exit code ${code}).`, { hint: lastLines(output) });
}

async function checkOut(checkout: string, commit: string, directory: string): Promise<void> {
  const releases = path.dirname(directory);
  mkdirSync(releases, { recursive: true });
  removeUnfinished(releases);
  const aside = `${directory}.tmp-${process.pid}`;
  mkdirSync(aside);
  const archive = path.join(aside, "code.tar");
  await gitIn(checkout)("archive", `--output=${archive}`, commit);
  const { code, output } = await run(["tar", "--extract", `--file=${archive}`, `--directory=${aside}`], {
    timeoutMs: gitTimeoutMs,
  });
  if (code !== 0)
    throw new Failure(`The files of ${commit} could not be written.`, { hint: lastLines(output) });
  rmSync(archive);
  await copyPackages(checkout, aside);
  // The directory is complete once it has its final name; `kontor prepare` can be repeated.
  renameSync(aside, directory);
}

/** Links the packages of an equal lockfile file by file, which takes no space and no request to a registry. */
async function copyPackages(from: string, to: string): Promise<void> {
  const lock = (folder: string): string => readFileSync(path.join(folder, "package-lock.json"), "utf8");
  const packages = path.join(from, "node_modules");
  if (!existsSync(packages) || lock(from) !== lock(to)) return;
  const copied = path.join(to, "node_modules");
  const { code } = await run(["cp", "--archive", "--link", packages, copied], { timeoutMs: gitTimeoutMs });
  // npm then installs the packages instead.
  if (code !== 0) rmSync(copied, { recursive: true, force: true });
}

function removeUnfinished(releases: string): void {
  for (const name of readdirSync(releases)) {
    if (name.includes(".tmp-")) rmSync(path.join(releases, name), { recursive: true, force: true });
  }
}

/** Removes the directories of earlier upgrades, except for those in `keep`. */
export function removeOldReleases(checkout: string, keep: readonly string[]): void {
  const releases = path.join(checkout, ".cache", "releases");
  for (const name of existsSync(releases) ? readdirSync(releases) : []) {
    const directory = path.join(releases, name);
    if (!keep.includes(realpathSync(directory))) rmSync(directory, { recursive: true, force: true });
  }
}

/**
 * Moves the checkout to the commit that now serves, so that the next `kontor up` starts it too. A branch moves forward
 * if it can; otherwise the checkout has no branch afterwards. Returns a text that describes the move.
 */
export async function followCommit(checkout: string, commit: string): Promise<string> {
  const head = await tryGit(checkout, ["rev-parse", "HEAD"]);
  if (head === commit) return "is at this commit already";
  const branch = await tryGit(checkout, ["symbolic-ref", "--quiet", "--short", "HEAD"]);
  if (branch && (await tryGit(checkout, ["merge", "--quiet", "--ff-only", commit])) !== undefined) {
    return `its branch ${branch} moved forward`;
  }
  await gitIn(checkout)("checkout", "--quiet", "--detach", commit);
  return "moved to this commit, without a branch";
}

/** Returns the commit of a directory of code, if the directory is a checkout. */
export async function commitOf(directory: string): Promise<string | undefined> {
  return existsSync(path.join(directory, ".git")) ? tryGit(directory, ["rev-parse", "HEAD"]) : undefined;
}

/** Runs git and returns its output, without the last newline except for `show`. Throws a `Failure` with git's error. */
function gitIn(directory: string): (...args: string[]) => Promise<string> {
  return async (...args) => {
    const { code, output } = await runGit(directory, args);
    if (code === 0) return args[0] === "show" ? output : output.trimEnd();
    throw new Failure(`git ${args[0]} failed in ${directory}.`, { hint: lastLines(output) });
  };
}

async function tryGit(directory: string, args: readonly string[]): Promise<string | undefined> {
  const { code, output } = await runGit(directory, args);
  return code === 0 ? output.trimEnd() : undefined;
}

async function runGit(directory: string, args: readonly string[]): Promise<{ code: number; output: string }> {
  // git refuses a checkout of another owner, and the checkout may not belong to root.
  const argv = ["git", "-c", "safe.directory=*", "-C", directory, ...args] as const;
  return run(argv, {
    env: { ...process.env, GIT_TERMINAL_PROMPT: "0", LC_ALL: "C" },
    timeoutMs: args[0] === "fetch" ? fetchTimeoutMs : gitTimeoutMs,
  });
}

function lastLines(output: string): string {
  return output.trim().split("\n").slice(-15).join("\n");
}
