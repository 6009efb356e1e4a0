/**
 * Images that are made of layers. A native machine stacks them for itself; gVisor takes one directory, so for it the layers
 * of an image are mounted once, read-only, by whoever first needs them, and shared until the image goes.
 *
 * On top of every image lies a layer of ours with the places our mounts go to. Whatever an image has there instead, a
 * symlink out of it above all, is out of sight: no mount is led astray, and /etc/resolv.conf is a file.
 */
import { access, chmod, mkdir, readFile, readdir, rename, rm, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../exec.ts";
import { sharedRootArgv } from "../linux/argv.ts";
import { mountPointsBelow, unmountBelow } from "../mounts.ts";
import { Turns } from "../turns.ts";
import type { ImageFiles } from "./images.ts";

const DIRECTORIES = [".kontor/run", "dev", "etc", "persist", "proc", "sys", "tmp"];
/** gVisor mounts memory over a /tmp that is empty. */
const FILES = [".kontor/guest", "etc/resolv.conf", "tmp/.keep"];

/** Makes that layer unless it is there. It is never changed: machines have it mounted. */
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
  /** Of this installation's own; a mount for each image. */
  directory: string;
  mountPoints: string;
  shimBinary: string;
}

export class ImageRoots {
  readonly #options: ImageRootsOptions;
  readonly #turns = new Turns<string>();

  constructor(options: ImageRootsOptions) {
    this.#options = options;
  }

  /** All of the image's files in one directory, which has the places our mounts go to. */
  async rootOf({ id, layers, isOurs }: ImageFiles): Promise<string> {
    const [rootfs = ""] = layers;
    if (isOurs) return rootfs;
    const at = join(this.#options.directory, id);
    return this.#turns.take(id, async () => {
      const mounts = mountPointsBelow(await readFile("/proc/self/mountinfo", "utf8"), at);
      if (mounts.length > 0) return at;
      await mkdir(at, { recursive: true });
      const { shimBinary, mountPoints } = this.#options;
      await run(sharedRootArgv(shimBinary, { at, layers: [...layers, mountPoints] }));
      return at;
    });
  }

  /** Machines that still run on it keep it. */
  remove(id: string): Promise<void> {
    const at = join(this.#options.directory, id);
    return this.#turns.take(id, async () => {
      await unmountBelow(at);
      await rmdir(at).catch(ignoreMissing);
    });
  }

  async removeAll(): Promise<void> {
    await unmountBelow(this.#options.directory);
    // Never with what is in them.
    for (const name of await readdir(this.#options.directory).catch(() => [])) {
      await rmdir(join(this.#options.directory, name));
    }
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): false {
  if (error.code !== "ENOENT") throw error;
  return false;
}
