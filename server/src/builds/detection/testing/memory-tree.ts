/** A test's repository in memory: its files by path. */
import type { Entry, Tree } from "../tree.ts";

export function memoryTree(files: Record<string, string>): Tree {
  return {
    async read(file, maxBytes) {
      const text = Object.hasOwn(files, file) ? files[file] : undefined;
      return text === undefined ? undefined : Buffer.from(text).subarray(0, maxBytes).toString();
    },

    async list(directory) {
      const prefix = directory === "." ? "" : `${directory}/`;
      const entries = new Map<string, Entry["kind"]>();
      for (const file of Object.keys(files)) {
        if (!file.startsWith(prefix)) continue;
        const [name = "", ...rest] = file.slice(prefix.length).split("/");
        entries.set(name, rest.length > 0 ? "directory" : "file");
      }
      return [...entries].map(([name, kind]) => ({ name, kind }));
    },
  };
}
