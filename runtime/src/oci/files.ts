/**
 * Single files of an image, read out of its layers without anything of it being run or mounted. Layers are anybody's:
 * only real directories lead to a file, and only a real file is one.
 */
import { constants } from "node:fs";
import { lstat, open } from "node:fs/promises";
import { join } from "node:path";

/** As the uppermost layer has it that says anything of it; undefined where it is not there, or is larger. */
export async function readFromLayers(
  layers: readonly string[],
  path: string,
  maxBytes: number,
): Promise<Buffer | undefined> {
  const names = path.split("/").filter(Boolean);
  for (const layer of layers.toReversed()) {
    let at = layer;
    let isHidden = false;
    for (const [index, name] of names.entries()) {
      at = join(at, name);
      const info = await lstat(at).catch(() => undefined);
      if (info === undefined) break;
      const isLast = index === names.length - 1;
      // A whiteout is a device of number 0; anything else that is in the way hides what lies below as well.
      if (isLast && info.isFile()) return info.size <= maxBytes ? read(at) : undefined;
      if (isLast || !info.isDirectory()) isHidden = true;
    }
    if (isHidden) return undefined;
  }
  return undefined;
}

async function read(file: string): Promise<Buffer> {
  const handle = await open(file, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}
