/**
 * Which of a build's variables a command may use. Every command is given all of them; one of another value makes a
 * command's layer anew only where the command or a file that is there by then names it, where tools read it by
 * themselves, or where something takes the environment as a whole. What a variable is for besides, the app that runs
 * above all, costs the cache nothing.
 */
import { open, readdir, readFile } from "node:fs/promises";
import { join, posix } from "node:path";

/** Paths of the context that a command's stage holds by then; `.` is all of it. */
export interface Step {
  command: string;
  files: readonly string[];
}

/** Package managers, compilers and interpreters read these of themselves. */
const ofTools =
  /^(?:npm_|yarn_|pnpm_|bun_|node_|corepack_|pip_|uv_|poetry_|python|go[A-Z]|cgo_|rust|cargo_|git_|ssl_|lc_)|^(?:ci|tz|lang|path|home|debug|cc|cxx|ld|\w*flags)$|_proxy$/i;
/** What bundlers and frameworks take by its beginning, where more than single files is there, such as a manifest. */
const ofFrameworks =
  /^(?:NEXT|NUXT|NITRO|VITE|PUBLIC|REACT_APP|GATSBY|ASTRO|EXPO|NG|VUE_APP|STORYBOOK|TURBO|NX|PRISMA|SENTRY|DJANGO|FLASK)_|^(?:BASE_URL|GENERATE_SOURCEMAP)$/;
/** Not one variable of it, but all. */
const takesAll =
  /(?<!\}\s*=\s*)\bprocess\.env\b(?!\s*(?:\?\.|\.|\[\s*["'`]))|\bos\.environ\b(?!\s*(?:\[|\.(?:get|setdefault|pop)\b))|\bos\.Environ\(/;
const printsAll = /(?:^|[;&|(]\s*)(?:printenv|env|export(?: -p)?)\s*(?:$|[;&|>)])/;

const fileMaxBytes = 16 * 1024 ** 2;
const allMaxBytes = 64 * 1024 ** 2;
const filesMax = 20_000;
/** What is no text has a NUL in it by then (as git looks). */
const looksAtBytes = 8 * 1024;

/** What an archive holds is not looked at: a command that takes it apart may use any variable. */
const packed = Symbol("packed");
/** How gzip, xz, bzip2, Zstandard and ZIP begin, and where tar says what it is. */
const packedMarks: readonly (readonly [at: number, mark: string])[] = [
  [0, "\x1f\x8b"],
  [0, "\xfd7zXZ\0"],
  [0, "BZh"],
  [0, "\x28\xb5\x2f\xfd"],
  [0, "PK\x03\x04"],
  [257, "ustar"],
];

/** Says of each step which of the names count. The context must not change meanwhile. */
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
  /** Files that take all of them. */
  ofAll: string[];
  files: ReadonlySet<string>;
}

/** Undefined where there is more than is read. */
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

/** Also by a beginning alone, as in `startsWith("MY_")`. */
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

/** Nothing is followed, and git's own is no part of a context. */
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

/** Undefined where it is none, `packed` where it may hold many; more than is allowed where there is more. */
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
