/**
 * Images made of layers. A native machine stacks the layers itself. gVisor accepts one directory, so the
 * first user of an image mounts its layers once, read-only. All gVisor machines of the image share that mount until the
 * image is removed.
 *
 * A layer with Kontor's mount points lies on top of every image. This layer hides the image's own entries at these
 * paths, above all symlinks out of the image. So no mount follows a symlink of the image, and /etc/resolv.conf is a
 * file.
 */
import { access, chmod, mkdir, readFile, readdir, rename, rm, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../exec.ts";
import { sharedRootArgv } from "../linux/argv.ts";
import { mountPointsBelow, unmountBelow } from "../mounts.ts";
import { KeyedMutex } from "../keyed-mutex.ts";
import type { ImageFiles } from "./images.ts";

const DIRECTORIES = [".kontor/run", "dev", "etc", "persist", "proc", "sys", "tmp"];
/** Files of the layer with the mount points. tmp/.keep is there because gVisor mounts memory over an empty /tmp. */
const FILES = [".kontor/guest", "etc/resolv.conf", "tmp/.keep"];

/**
 * Makes the layer with the mount points unless it exists. The layer never changes, because machines have it mounted.
 */
export async function makeMountPoints(directory: string): Promise<void> {
  if (await access(directory).then(() => true, ignoreMissing)) return;
  const aside = `${directory}.new`;
  await rm(aside, { recursive: true, force: true });
  for (const name of DIRECTORIES) await mkdir(join(aside, name), { recursive: true, mode: 0o755 });
  for (const name of FILES) await writeFile(join(aside, name), "", { mode: 0o644 });
  await chmod(join(aside, ".kontor/guest"), 0o755);
  await chmod(join(aside, "tmp"), 0o1777);
  await rename(aside, directory);
}

export interface ImageRootsOptions {
  /** Directory of this installation alone, with a mount for each image. */
  directory: string;
  mountPoints: string;
  shimBinary: string;
}

export class ImageRoots {
  readonly #options: ImageRootsOptions;
  readonly #mutex = new KeyedMutex<string>();

  constructor(options: ImageRootsOptions) {
    this.#options = options;
  }

  /** Returns one directory with all files of the image and with Kontor's mount points. */
  async rootOf({ id, layers, isOurs }: ImageFiles): Promise<string> {
    const [rootfs = ""] = layers;
    if (isOurs) return rootfs;
    const at = join(this.#options.directory, id);
    return this.#mutex.run(id, async () => {
      const mounts = mountPointsBelow(await readFile("/proc/self/mountinfo", "utf8"), at);
      if (mounts.length > 0) return at;
      await mkdir(at, { recursive: true });
      const { shimBinary, mountPoints } = this.#options;
      await run(sharedRootArgv(shimBinary, { at, layers: [...layers, mountPoints] }));
      return at;
    });
  }

  /** Removes the mount of an image. Running machines keep their mount. */
  remove(id: string): Promise<void> {
    const at = join(this.#options.directory, id);
    return this.#mutex.run(id, async () => {
      await unmountBelow(at);
      await rmdir(at).catch(ignoreMissing);
    });
  }

  async removeAll(): Promise<void> {
    await unmountBelow(this.#options.directory);
    // Removes empty directories only, never recursively.
    for (const name of await readdir(this.#options.directory).catch(() => [])) {
      await rmdir(join(this.#options.directory, name));
    }
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): false {
  if (error.code !== "ENOENT") throw error;
  return false;
}
