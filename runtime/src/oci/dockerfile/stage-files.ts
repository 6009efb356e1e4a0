/**
 * Tracks the files of the context in each stage of a Dockerfile, instruction by instruction, as far as the
 * text shows them. Pure.
 */
import { posix } from "node:path";

export class StageFiles {
  readonly #stages = new Map<string, string[]>();
  #now: string[] = [];

  /** Starts a stage. A stage based on another stage starts with the files of that stage. */
  begin(base: string, names: readonly string[]): void {
    this.#now = [...(this.#stages.get(base) ?? [])];
    for (const name of names) this.#stages.set(name, this.#now);
  }

  /** Handles COPY and ADD: the words after their options, and the stage or image of `--from`. */
  copy(words: string, from: string | undefined): void {
    if (from !== undefined) return this.#hold(this.#stages.get(from.toLowerCase()) ?? []);
    const sources = words.trim().split(/\s+/).slice(0, -1);
    // Sources of unclear form count as any file.
    const isPlain = !words.startsWith("[") && sources.every((source) => /^[\w./@+-]+$/.test(source));
    this.#hold(isPlain ? sources.map(pathOf) : ["."]);
  }

  get now(): readonly string[] {
    return this.#now;
  }

  #hold(paths: readonly string[]): void {
    for (const path of paths) if (!this.#now.includes(path)) this.#now.push(path);
  }
}

function pathOf(source: string): string {
  return posix.relative("/", posix.join("/", source)) || ".";
}
