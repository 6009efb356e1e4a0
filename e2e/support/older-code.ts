/**
 * Code for tests that start a server of another version: an earlier commit, or a repository with changed copies of this
 * checkout. An earlier commit is kept in the cache of the tests' images, because building its native programs takes
 * some seconds.
 */
import { createHash } from "node:crypto";
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { run } from "@kontor/runtime/exec.ts";
import { TEST_CACHE } from "@kontor/runtime/rootfs/testing/image.ts";

const repository = join(import.meta.dirname, "../..");

/** Returns false in a clone without the commit, such as a shallow clone. */
export async function hasCommit(commit: string): Promise<boolean> {
  const argv = ["git", "-C", repository, "cat-file", "-e", `${commit}^{commit}`] as const;
  return (await run(argv, { okCodes: [0, 1, 128] })).code === 0;
}

/** Returns the directory of the commit's code, with its packages and native programs. */
export async function codeOf(commit: string): Promise<string> {
  const directory = join(TEST_CACHE, "code", commit);
  if (existsSync(directory)) return directory;
  const aside = `${directory}.tmp-${process.pid}`;
  rmSync(aside, { recursive: true, force: true });
  mkdirSync(aside, { recursive: true });
  try {
    await checkOut(commit, aside);
    await addPackages(aside);
    for (const folder of ["guest", "runtime/shim"]) {
      await run(["make", "-C", join(aside, folder)], { timeoutMs: 120_000 });
    }
    // The directory is complete once it has its final name.
    renameSync(aside, directory);
  } catch (error) {
    rmSync(aside, { recursive: true, force: true });
    throw error;
  }
  return directory;
}

/** Links images into a data directory with that code's own `linkImages`, because its recipes may differ. */
export async function linkImagesOf(code: string, dataDir: string, names: readonly string[]): Promise<void> {
  const program = `const { linkImages } = await import(${JSON.stringify(join(code, "e2e/images.ts"))});
await linkImages(${JSON.stringify(dataDir)}, ${JSON.stringify(names)});`;
  // Images that the cache lacks are made first.
  await run([process.execPath, "--input-type=module", "--eval", program], { timeoutMs: 600_000 });
}

/** Makes `directory` a repository whose first commit is this checkout with its uncommitted changes, and links packages. */
export async function copyCheckout(directory: string): Promise<void> {
  mkdirSync(directory, { recursive: true });
  const listed = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
  const { stdout } = await run(["git", "-C", repository, ...listed], { timeoutMs: 60_000 });
  // The list also contains files that were deleted without a commit.
  const files = stdout.split("\0").filter((name) => name !== "" && existsSync(join(repository, name)));
  const archive = join(directory, "code.tar");
  const names = { stdin: files.join("\0"), timeoutMs: 60_000 };
  await run(["tar", "-C", repository, "--create", `--file=${archive}`, "--null", "--files-from=-"], names);
  await run(["tar", "--extract", `--file=${archive}`, `--directory=${directory}`], { timeoutMs: 60_000 });
  rmSync(archive);
  linkPackages(directory);
  const lock = readFileSync(join(directory, "package-lock.json"));
  // Makes the command `kontor` treat the packages as installed.
  writeFileSync(
    join(directory, "node_modules/.kontor-lock"),
    createHash("sha256").update(lock).digest("hex"),
  );
  await run(["git", "-C", directory, "init", "--quiet", "--initial-branch=main"]);
  await commitAll(directory, "this checkout");
}

/** Commits every change in the repository, and returns the commit. */
export async function commitAll(directory: string, message: string): Promise<string> {
  const git = ["git", "-C", directory, "-c", "user.name=Ada", "-c", "user.email=ada@example.test"];
  await run([...git, "add", "--all"], { timeoutMs: 60_000 });
  await run([...git, "commit", "--quiet", `--message=${message}`], { timeoutMs: 60_000 });
  return (await run([...git, "rev-parse", "HEAD"])).stdout.trim();
}

async function checkOut(commit: string, directory: string): Promise<void> {
  const archive = join(directory, "code.tar");
  await run(["git", "-C", repository, "archive", `--output=${archive}`, commit], { timeoutMs: 60_000 });
  await run(["tar", "--extract", `--file=${archive}`, `--directory=${directory}`], { timeoutMs: 60_000 });
  rmSync(archive);
}

/**
 * Links the packages of this checkout if it has every version that the other lockfile names. Otherwise installs them.
 */
async function addPackages(directory: string): Promise<void> {
  if (!hasVersionsOf(directory)) {
    const npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"] as const;
    await run(npm, { cwd: directory, timeoutMs: 300_000 });
    return;
  }
  linkPackages(directory);
}

function linkPackages(directory: string): void {
  const from = join(repository, "node_modules");
  const to = join(directory, "node_modules");
  mkdirSync(join(to, "@kontor"), { recursive: true });
  for (const name of readdirSync(from)) {
    if (!name.startsWith(".") && name !== "@kontor") symlinkSync(join(from, name), join(to, name));
  }
  for (const name of readdirSync(join(from, "@kontor"))) {
    symlinkSync(join("../..", name), join(to, "@kontor", name));
  }
}

function hasVersionsOf(directory: string): boolean {
  const own = lockedVersions(repository);
  return [...lockedVersions(directory)].every(([name, version]) => own.get(name) === version);
}

function lockedVersions(directory: string): Map<string, string | undefined> {
  const { packages } = JSON.parse(readFileSync(join(directory, "package-lock.json"), "utf8")) as {
    packages: Record<string, { version?: string }>;
  };
  return new Map(Object.entries(packages).map(([name, { version }]) => [name, version]));
}
