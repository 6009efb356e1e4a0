/** What a Dockerfile's stages hold of the context, instruction by instruction, as far as their text says. Pure. */
import { posix } from "node:path";

export class StageFiles {
  readonly #stages = new Map<string, string[]>();
  #now: string[] = [];

  /** A stage begins; on another one it begins with what that holds. */
  begin(base: string, names: readonly string[]): void {
    this.#now = [...(this.#stages.get(base) ?? [])];
    for (const name of names) this.#stages.set(name, this.#now);
  }

  /** COPY and ADD: the words behind their options, and the stage or image that they name. */
  copy(words: string, from: string | undefined): void {
    if (from !== undefined) return this.#hold(this.#stages.get(from.toLowerCase()) ?? []);
    const sources = words.trim().split(/\s+/).slice(0, -1);
    // What is not told by its text may be anything.
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
