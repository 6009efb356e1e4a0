/**
 * Reads single files of an image from its layers, without running or mounting it. Layers are untrusted: only
 * real directories are followed, and only a real file is read.
 */
import { lstat } from "node:fs/promises";
import { openDirectory, readWithin, within } from "./bases/base-in-store.ts";
import { splitLayer } from "./store.ts";

/**
 * Returns the file from the uppermost layer that has the path. Undefined if the file does not exist or exceeds
 * `maxBytes`.
 */
export async function readFromLayers(
  layers: readonly string[],
  path: string,
  maxBytes: number,
): Promise<Buffer | undefined> {
  const names = path.split("/").filter(Boolean);
  for (const layer of layers.toReversed()) {
    const found = await readFromLayer(layer, names, maxBytes);
    if (found === "hidden") return undefined;
    if (found !== undefined) return found;
  }
  return undefined;
}

/**
 * Returns "hidden" if another kind of file is at the path or on the way to it. Undefined if the path does not
 * exist.
 */
async function readFromLayer(
  layer: string,
  names: readonly string[],
  maxBytes: number,
): Promise<Buffer | "hidden" | undefined> {
  const { trusted, names: below } = splitLayer(layer);
  let directory = await openDirectory(trusted, below);
  try {
    for (const [index, name] of names.entries()) {
      const info = await lstat(within(directory, name)).catch(() => undefined);
      if (info === undefined) return undefined;
      // A whiteout is a device of number 0; any other entry at the path also hides the layers below.
      if (index === names.length - 1)
        return info.isFile() && info.size <= maxBytes
          ? await readWithin(directory, name, maxBytes)
          : "hidden";
      if (!info.isDirectory()) return "hidden";
      const inner = await openDirectory(`/proc/self/fd/${directory.fd}`, [name]);
      await directory.close();
      directory = inner;
    }
    return "hidden";
  } finally {
    await directory.close();
  }
}
