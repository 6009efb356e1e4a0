/**
 * Writes the build directory and the Dockerfile of a version's image. Code, packages and lock are files, so no text of
 * a caller is part of an instruction. Layers that seldom change come first. The handler is in the last layer, so a
 * changed handler makes one small layer.
 */
import { createHash } from "node:crypto";
import { chmod, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { run } from "#builds/detection/dockerfile.ts";
import { type Dependencies, pythonRequirement, type Runtime, sortDependencies } from "./dependencies.ts";

export interface Content {
  runtime: Runtime;
  handler_code: string;
  dependencies: Dependencies;
}

/** Files of the build directory that are copied into the image. */
type Files = Record<string, string | Buffer>;

const templates = fileURLToPath(new URL("../../../../../templates/functions", import.meta.url));

interface Kind {
  base: string;
  handler: string;
  /** Directory of the installer's cache, kept for the workspace's next build. */
  cache: string;
  manifest: (dependencies: Dependencies) => { name: string; text: string };
  lockName: string;
  /**
   * Commands that install packages: `install` from the requirements, writing a lock, and `installLocked` from a lock.
   */
  install: string;
  installLocked: string;
  /** Files that the installation needs in addition to the requirements or the lock. */
  tools: readonly string[];
  /** Command that runs after the wrapper program was copied. */
  settle?: string;
}

const npm = "--omit=dev --no-audit --no-fund --loglevel=error --omit-lockfile-registry-resolved";
const pip = "--root-user-action=ignore --no-warn-script-location --progress-bar=off --quiet";

const kinds: Readonly<Record<Runtime, Kind>> = {
  nodejs: {
    base: "node:22-slim",
    handler: "handler.mjs",
    cache: "/root/.npm",
    manifest: (dependencies) => ({
      name: "package.json",
      text: `${JSON.stringify({ name: "function", private: true, dependencies: Object.fromEntries(sortDependencies(dependencies)) }, null, 2)}\n`,
    }),
    lockName: "package-lock.json",
    install: `npm install ${npm}`,
    installLocked: `npm ci ${npm}`,
    tools: [],
  },
  python: {
    base: "python:3.13-slim",
    handler: "handler.py",
    cache: "/root/.cache/pip",
    manifest: (dependencies) => ({
      name: "requirements.txt",
      text: sortDependencies(dependencies)
        .map(([name, version]) => `${pythonRequirement(name, version)}\n`)
        .join(""),
    }),
    lockName: "lock.txt",
    // pip installs Debian's own packages again, so that the lock contains every package.
    install: `pip install ${pip} --ignore-installed --requirement requirements.txt --report /tmp/report.json && python3 lock.py /tmp/report.json lock.txt && rm /tmp/report.json lock.py`,
    installLocked: `pip install ${pip} --ignore-installed --no-deps --requirement lock.txt`,
    tools: ["lock.py"],
    settle: "python3 -m compileall -q /opt/kontor/function",
  },
};

export const functionBases: readonly string[] = Object.values(kinds).map(({ base }) => base);

/** Returns the Dockerfile. With `hasLock`, it installs from the lock of an earlier version. Pure function. */
export function recipeOf({ runtime, dependencies }: Content, hasLock: boolean): string {
  const kind = kinds[runtime];
  const hasAny = Object.keys(dependencies).length > 0;
  const { name } = kind.manifest(dependencies);
  const files = hasLock ? [name, kind.lockName] : [name, ...kind.tools];
  return [
    `FROM ${kind.base}`,
    "WORKDIR /app",
    ...(hasAny
      ? [`COPY ${files.join(" ")} ./`, run(hasLock ? kind.installLocked : kind.install, [kind.cache])]
      : []),
    "COPY function /opt/kontor/function/",
    ...(kind.settle ? [run(kind.settle)] : []),
    `COPY ${kind.handler} ./`,
    // A user without a name, whose process may write below /tmp only.
    "USER 65534:65534",
    `CMD ["true"]`,
    "",
  ].join("\n");
}

/** Returns a hash of all inputs of the image but the lock. Equal hashes with equal locks mean equal images. */
export async function contentHash(content: Content): Promise<Buffer> {
  const { runtime, handler_code, dependencies } = content;
  const hash = createHash("sha256");
  const served = Object.entries(await wrapper(runtime)).map(([name, text]) => [
    name,
    createHash("sha256").update(text).digest("hex"),
  ]);
  return hash
    .update(JSON.stringify([recipeOf(content, false), served, sortDependencies(dependencies), handler_code]))
    .digest();
}

/** Writes the build directory in place of an earlier one. */
export async function writeBuildDirectory(
  directory: string,
  content: Content,
  lock: string | null,
): Promise<void> {
  const { runtime, handler_code, dependencies } = content;
  const kind = kinds[runtime];
  const manifest = kind.manifest(dependencies);
  const tools = await Promise.all(
    kind.tools.map(async (name) => [name, await readFile(join(templates, name))] as const),
  );
  const served = Object.entries(await wrapper(runtime)).map(([name, text]) => [
    `function/${runtime}/${name}`,
    text,
  ]);
  const files: Files = {
    [manifest.name]: manifest.text,
    ...(lock === null ? {} : { [kind.lockName]: lock }),
    ...Object.fromEntries([...tools, ...served]),
    [kind.handler]: handler_code,
  };
  await rm(directory, { recursive: true, force: true });
  await mkdir(directory, { recursive: true, mode: 0o700 });
  for (const [name, text] of Object.entries(files)) await writeReadable(join(directory, name), text);
}

/** Writes a file that every user of the image can read, whatever this process's umask is. */
async function writeReadable(path: string, text: string | Buffer): Promise<void> {
  const made = await mkdir(dirname(path), { recursive: true });
  for (let at = dirname(path); made !== undefined && at.length >= made.length; at = dirname(at))
    await chmod(at, 0o755);
  await writeFile(path, text);
  await chmod(path, 0o644);
}

/** Returns the files of the program that serves a handler, by name. */
async function wrapper(runtime: Runtime): Promise<Files> {
  const directory = join(templates, runtime);
  const entries = await readdir(directory, { withFileTypes: true });
  const names = entries.filter((entry) => entry.isFile() && /^[\w.-]+\.(?:mjs|py)$/.test(entry.name));
  const read = names.map(async ({ name }) => [name, await readFile(join(directory, name))] as const);
  return Object.fromEntries((await Promise.all(read)).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
