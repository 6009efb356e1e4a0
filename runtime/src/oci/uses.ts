/**
 * Determines the variables of a build that a command may use. Every command receives all of them. A changed value
 * invalidates a command's layer only if the command may use the variable. A command may use a variable that it names,
 * that a file present by then names, or that tools read by themselves. A command may use all variables if it or such a
 * file reads the whole environment. A variable for other purposes, above all for the running app, costs no cache.
 */
import { open, readdir, readFile } from "node:fs/promises";
import { join, posix } from "node:path";

/**
 * A command of a Dockerfile. `files` are the paths of the context in the command's stage by then; `.` is the whole
 * context.
 */
export interface Step {
  command: string;
  files: readonly string[];
}

/** Variables that package managers, compilers and interpreters read by themselves. */
const ofTools =
  /^(?:npm_|yarn_|pnpm_|bun_|node_|corepack_|pip_|uv_|poetry_|python|go[A-Z]|cgo_|rust|cargo_|git_|ssl_|lc_)|^(?:ci|tz|lang|path|home|debug|cc|cxx|ld|\w*flags)$|_proxy$/i;
/**
 * Prefixes that bundlers and frameworks read, if the stage has more than single files, such as a manifest.
 */
const ofFrameworks =
  /^(?:NEXT|NUXT|NITRO|VITE|PUBLIC|REACT_APP|GATSBY|ASTRO|EXPO|NG|VUE_APP|STORYBOOK|TURBO|NX|PRISMA|SENTRY|DJANGO|FLASK)_|^(?:BASE_URL|GENERATE_SOURCEMAP)$/;
/** Matches text that reads the whole environment. */
const takesAll =
  /(?<!\}\s*=\s*)\bprocess\.env\b(?!\s*(?:\?\.|\.|\[\s*["'`]))|\bos\.environ\b(?!\s*(?:\[|\.(?:get|setdefault|pop)\b))|\bos\.Environ\(/;
const printsAll = /(?:^|[;&|(]\s*)(?:printenv|env|export(?: -p)?)\s*(?:$|[;&|>)])/;

const fileMaxBytes = 16 * 1024 ** 2;
const allMaxBytes = 64 * 1024 ** 2;
const filesMax = 20_000;
/** Number of first bytes in which a binary file has a NUL byte (the test of git). */
const looksAtBytes = 8 * 1024;

/** Result for an archive, which is not read: a command that unpacks it may use any variable. */
const packed = Symbol("packed");
/** Marks of archives: the first bytes of gzip, xz, bzip2, Zstandard and ZIP, and the position of tar's mark. */
const packedMarks: readonly (readonly [at: number, mark: string])[] = [
  [0, "\x1f\x8b"],
  [0, "\xfd7zXZ\0"],
  [0, "BZh"],
  [0, "\x28\xb5\x2f\xfd"],
  [0, "PK\x03\x04"],
  [257, "ustar"],
];

/** Returns the names of the variables that each step may use. The context must not change meanwhile. */
export async function usesIn(
  context: string,
  names: readonly string[],
): Promise<(step: Step) => readonly string[]> {
  const places = await placesOf(context, names);
  return ({ command, files }) => {
    if (printsAll.test(command)) return names;
    const isAmong = (path: string) =>
      files.some((file) => file === "." || path === file || path.startsWith(`${file}/`));
    const isThere = (paths: readonly string[]) => paths.some(isAmong);
    if (files.length > 0 && (places === undefined || isThere(places.ofAll))) return names;
    const isMore = files.some((file) => places?.files.has(file) !== true);
    return names.filter(
      (name) =>
        ofTools.test(name) ||
        (isMore && ofFrameworks.test(name)) ||
        isNamed(command, name) ||
        isThere(places?.of.get(name) ?? []),
    );
  };
}

interface Places {
  /** Files that name a variable. */
  of: ReadonlyMap<string, string[]>;
  /** Files that use all variables. */
  ofAll: string[];
  files: ReadonlySet<string>;
}

/** Returns the files that use variables, or undefined if the context exceeds the limits of a search. */
async function placesOf(context: string, names: readonly string[]): Promise<Places | undefined> {
  const of = new Map<string, string[]>(names.map((name) => [name, []]));
  const ofAll: string[] = [];
  let bytes = 0;
  const files = await filesBelow(context);
  if (files.length > filesMax) return undefined;
  for (const path of files) {
    const text = await textOf(join(context, path));
    if (text === packed) ofAll.push(path);
    if (text === undefined || text === packed) continue;
    bytes += text.length;
    if (text.length > fileMaxBytes || bytes > allMaxBytes) return undefined;
    if (takesAll.test(text)) ofAll.push(path);
    for (const [name, paths] of of) if (isNamed(text, name)) paths.push(path);
  }
  return { of, ofAll, files: new Set(files) };
}

function isPacked(beginning: Buffer): boolean {
  return packedMarks.some(([at, mark]) => beginning.toString("latin1", at, at + mark.length) === mark);
}

/** True if the text names the variable, or only its prefix, as in `startsWith("MY_")`. */
function isNamed(text: string, name: string): boolean {
  return [name, ...beginnings(name)].some((word) => {
    for (let at = text.indexOf(word); at !== -1; at = text.indexOf(word, at + 1)) {
      const around = `${text.charAt(at - 1)} ${text.charAt(at + word.length)}`;
      if (!/\w/.test(around)) return true;
    }
    return false;
  });
}

function beginnings(name: string): string[] {
  return [...name.matchAll(/(?<=[^_])_(?=.)/g)].map(({ index }) => name.slice(0, index + 1));
}

/** Returns the files below the context, without following symlinks. git's own files are not part of a context. */
async function filesBelow(context: string): Promise<string[]> {
  const found: string[] = [];
  const open = [""];
  for (let at = open.pop(); at !== undefined && found.length <= filesMax; at = open.pop()) {
    for (const entry of await readdir(join(context, at), { withFileTypes: true })) {
      const path = posix.join(at, entry.name);
      if (entry.isFile()) found.push(path);
      else if (entry.isDirectory() && entry.name !== ".git") open.push(path);
    }
  }
  return found;
}

/**
 * Returns the text of a file: undefined for a binary file, `packed` for an archive. For a file above the limit, the
 * text exceeds the limit.
 */
async function textOf(file: string): Promise<string | typeof packed | undefined> {
  const handle = await open(file, "r");
  try {
    const { bytesRead, buffer } = await handle.read(Buffer.alloc(looksAtBytes), 0, looksAtBytes, 0);
    if (isPacked(buffer.subarray(0, bytesRead))) return packed;
    if (buffer.subarray(0, bytesRead).includes(0)) return undefined;
    if (bytesRead < looksAtBytes) return buffer.toString("latin1", 0, bytesRead);
    const { size } = await handle.stat();
    return size > fileMaxBytes ? " ".repeat(fileMaxBytes + 1) : await readFile(handle, "latin1");
  } finally {
    await handle.close();
  }
}
