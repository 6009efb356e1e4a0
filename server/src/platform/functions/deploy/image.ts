/**
 * What a version's image is made of: a directory and a Dockerfile, both of our writing. Code, packages and what a lock
 * says come as files, so that nothing of a caller's is ever part of an instruction. What changes seldom comes first, and
 * the handler last: a new one is a layer of its own size.
 */
import { createHash } from "node:crypto";
import { chmod, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { run } from "#builds/detection/dockerfile.ts";
import { type Dependencies, pythonRequirement, type Runtime, sorted } from "./dependencies.ts";

export interface Content {
  runtime: Runtime;
  handler_code: string;
  dependencies: Dependencies;
}

/** Each a file of the build's directory, and one of the image. */
type Files = Record<string, string | Buffer>;

const templates = fileURLToPath(new URL("../../../../../templates/functions", import.meta.url));

interface Kind {
  base: string;
  handler: string;
  /** Where installers keep what they fetched, for the next build of the workspace. */
  cache: string;
  manifest: (dependencies: Dependencies) => { name: string; text: string };
  lockName: string;
  /** Of what is wanted, leaving a lock; and of a lock. */
  install: string;
  installLocked: string;
  /** Of what installing needs beside those. */
  tools: readonly string[];
  /** Done once what serves the handler is there. */
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
      text: `${JSON.stringify({ name: "function", private: true, dependencies: Object.fromEntries(sorted(dependencies)) }, null, 2)}\n`,
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
      text: sorted(dependencies)
        .map(([name, version]) => `${pythonRequirement(name, version)}\n`)
        .join(""),
    }),
    lockName: "lock.txt",
    // What Debian brings is installed beside, so that the lock is all there is to know.
    install: `pip install ${pip} --ignore-installed --requirement requirements.txt --report /tmp/report.json && python3 lock.py /tmp/report.json lock.txt && rm /tmp/report.json lock.py`,
    installLocked: `pip install ${pip} --ignore-installed --no-deps --requirement lock.txt`,
    tools: ["lock.py"],
    settle: "python3 -m compileall -q /opt/kontor/function",
  },
};

export const functionBases: readonly string[] = Object.values(kinds).map(({ base }) => base);

/** `hasLock`: of what an earlier version was installed from. Pure. */
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
    // Nobody: what runs is told to write below /tmp.
    "USER 65534:65534",
    `CMD ["true"]`,
    "",
  ].join("\n");
}

/** Of all that goes into the image but the lock: equal ones with the same lock are the same. */
export async function contentHash(content: Content): Promise<Buffer> {
  const { runtime, handler_code, dependencies } = content;
  const hash = createHash("sha256");
  const served = Object.entries(await wrapper(runtime)).map(([name, text]) => [
    name,
    createHash("sha256").update(text).digest("hex"),
  ]);
  return hash
    .update(JSON.stringify([recipeOf(content, false), served, sorted(dependencies), handler_code]))
    .digest();
}

/** Writes what the image is built of, anew. */
export async function layOut(directory: string, content: Content, lock: string | null): Promise<void> {
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
  for (const [name, text] of Object.entries(files)) await put(join(directory, name), text);
}

/** In the image everyone may read it, whatever this process' umask is. */
async function put(path: string, text: string | Buffer): Promise<void> {
  const made = await mkdir(dirname(path), { recursive: true });
  for (let at = dirname(path); made !== undefined && at.length >= made.length; at = dirname(at))
    await chmod(at, 0o755);
  await writeFile(path, text);
  await chmod(path, 0o644);
}

/** The program that serves a handler, by name. */
async function wrapper(runtime: Runtime): Promise<Files> {
  const directory = join(templates, runtime);
  const entries = await readdir(directory, { withFileTypes: true });
  const names = entries.filter((entry) => entry.isFile() && /^[\w.-]+\.(?:mjs|py)$/.test(entry.name));
  const read = names.map(async ({ name }) => [name, await readFile(join(directory, name))] as const);
  return Object.fromEntries((await Promise.all(read)).toSorted(([a], [b]) => (a < b ? -1 : 1)));
}
