/**
 * Inspects a repository. Each file is read once, up to a limit. A file that does not parse causes a warning and counts
 * as empty, so no rule has to handle it.
 */
import { posix } from "node:path";
import { parse as parseToml } from "smol-toml";
import type { Entry, Tree } from "./tree.ts";

/**
 * Limit of a file that is read. A real package.json may have hundreds of kilobytes; a larger one is generated and
 * reveals nothing about the app.
 */
const maxBytes = 512 * 1024;
const maxLines = 40;
const maxLineLength = 240;

export type Fields = Readonly<Record<string, unknown>>;

export class Inspection {
  /** Reasons of the decisions, as sentences for people. */
  readonly evidence: string[] = [];
  readonly warnings: string[] = [];
  readonly #tree: Tree;
  readonly #texts = new Map<string, Promise<string | undefined>>();
  readonly #lists = new Map<string, Promise<Entry[]>>();

  constructor(tree: Tree) {
    this.#tree = tree;
  }

  because(line: string): void {
    note(this.evidence, line);
  }

  warn(line: string): void {
    note(this.warnings, line);
  }

  async text(file: string): Promise<string | undefined> {
    const known = this.#texts.get(file) ?? this.#tree.read(posix.normalize(file), maxBytes);
    this.#texts.set(file, known);
    return known;
  }

  async list(directory: string): Promise<Entry[]> {
    const known = this.#lists.get(directory) ?? this.#tree.list(posix.normalize(directory));
    this.#lists.set(directory, known);
    return known;
  }

  async has(file: string, kind: Entry["kind"] = "file"): Promise<boolean> {
    const { dir, base } = posix.parse(file);
    return (await this.list(dir || ".")).some((entry) => entry.name === base && entry.kind === kind);
  }

  /** Returns the first of the files that exists; undefined if none does. */
  async first(files: readonly string[]): Promise<string | undefined> {
    for (const file of files) if (await this.has(file)) return file;
    return undefined;
  }

  async json(file: string): Promise<Fields> {
    return this.#parsed(file, "JSON", JSON.parse);
  }

  async toml(file: string): Promise<Fields> {
    return this.#parsed(file, "TOML", parseToml);
  }

  async #parsed(file: string, format: string, parse: (text: string) => unknown): Promise<Fields> {
    const text = await this.text(file);
    if (text === undefined) return {};
    try {
      return fields(parse(text));
    } catch {
      this.warn(`${file} is not valid ${format}: it counts as empty`);
      return {};
    }
  }
}

/** Returns the value if it is an object, else an empty object. */
export function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

/**
 * Returns the string fields of an object, such as dependencies or scripts. A Map is safe for names from a repository.
 */
export function strings(value: unknown): Map<string, string> {
  return new Map(
    Object.entries(fields(value)).filter((entry): entry is [string, string] => typeof entry[1] === "string"),
  );
}

export function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

/** Removes comments from a program's text by a rough pattern, so that a disabled setting does not count. */
export function stripComments(program: string): string {
  let kept = "";
  for (let from = 0; from < program.length;) {
    const opens = program.indexOf("/*", from);
    kept += program.slice(from, opens === -1 ? undefined : opens);
    const closes = opens === -1 ? -1 : program.indexOf("*/", opens + 2);
    from = closes === -1 ? program.length : closes + 2;
  }
  return kept
    .split("\n")
    .filter((line) => !/^\s*(?:\/\/|#)/.test(line))
    .join("\n");
}

/**
 * Returns a relative path that a Dockerfile can contain unquoted, with `.` for the root. Undefined for a path that
 * leaves the root or has special characters of a builder or a shell.
 */
export function plainPath(given: string): string | undefined {
  const clean = posix.normalize(given.replace(/^\/+/, "") || ".").replace(/\/$/, "");
  if (clean.length > 200 || clean.split("/").includes("..")) return undefined;
  return clean === "." || /^[\w.@+][\w.@+/-]*$/.test(clean) ? clean : undefined;
}

/** Adds a line. Line breaks of the repository's text are removed, and its length is bounded. */
function note(lines: string[], line: string): void {
  const clean = line.replaceAll(/\p{C}+/gu, " ");
  const short = clean.length > maxLineLength ? `${clean.slice(0, maxLineLength)}…` : clean;
  if (lines.length < maxLines && !lines.includes(short)) lines.push(short);
}
