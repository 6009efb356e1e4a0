/**
 * Single files of an image, read out of its layers without anything of it being run or mounted. Layers are anybody's:
 * only real directories lead to a file, and only a real file is one.
 */
import { lstat } from "node:fs/promises";
import { openDirectory, readWithin, within } from "./beneath.ts";
import { splitLayer } from "./store.ts";

/** As the uppermost layer has it that says anything of it; undefined where it is not there, or is larger. */
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

/** Returns "hidden" if another kind of file is at the path or on the way to it. Undefined if nothing is there. */
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
      // A whiteout is a device of number 0; anything else that is in the way hides what lies below as well.
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
