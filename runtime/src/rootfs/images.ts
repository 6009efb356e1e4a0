/**
 * The images of this host: root filesystems that machines share read-only. An image is a directory `<id>` with its
 * `rootfs` and its record, `image.json`. An image is made in a temporary directory, which is renamed when complete. So
 * a directory with an id's name is complete. Any other directory is a leftover of a dead build, which the next process
 * deletes. A build that fails leaves no bytes, and reports the step and a cure.
 *
 * Two callers share one build. A recipe may have several ways; the first that succeeds is used. The record contains the
 * versions that were found in the image, and whether the way was a substitute.
 */
import { lstat, mkdir, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { RuntimeError, type Image, type ImageRecipe, type LayeredImage, type Progress } from "../driver.ts";
import { run } from "../exec.ts";
import { unmountBelow } from "../mounts.ts";
import { applyCapture, type CaptureLimits } from "./capture.ts";
import { finish } from "./finish.ts";
import { BUILT_IN_RECIPES, finder, imageId, loadRecipes, withoutUser, type FindRecipe } from "./recipes.ts";
import { IMAGE_PATH, makeSteps, runInside } from "./steps.ts";
import { TRUST_ENVIRONMENT, trustHost } from "./trust.ts";
import { addUser } from "./user.ts";

export interface ImagesOptions {
  /** Directory of the images, made if missing. */
  directory: string;
  /** Directory of the base recipes of others. Default: the built-in ones. */
  recipesDirectory?: string;
}

export interface ImageFiles {
  id: string;
  /** Directories with the image's files, the lowest first. */
  layers: string[];
  /** True for an image made here: one directory, which has Kontor's mount points. */
  isOurs: boolean;
}

interface Build {
  image: Promise<Image>;
  listeners: Set<Progress>;
  last: Parameters<Progress>[0] | undefined;
}

/**
 * The record of an image may name directories with its files, the lowest first. Without them, the files are
 * in `rootfs`.
 */
interface ImageRecord extends Image {
  layers?: string[];
}

/**
 * Name of an unfinished directory: `.building-<process id>-<n>`. A removal has a name of its own too, because it takes
 * seconds.
 */
const UNFINISHED = /^\.(?:building|removing)-(\d+)-\d+$/;
const IMAGE_ID = /^[a-z0-9][a-z0-9_.-]*$/;
const DU_TIMEOUT_MS = 20 * 60_000;
const COPY_TIMEOUT_MS = 10 * 60_000;
/** Largest number of layers of an image. overlayfs accepts 500 layers; container images have up to 127. */
const MAX_LAYERS = 100;

/**
 * Directories in which this process works: another `Images` object of this process may use the same parent directory.
 */
const ours = new Set<string>();
let counter = 0;

export class Images {
  readonly #options: ImagesOptions;
  readonly #builds = new Map<string, Build>();
  #swept: Promise<void> | undefined;
  #recipes: Promise<ImageRecipe[]> | undefined;

  constructor(options: ImagesOptions) {
    this.#options = options;
  }

  rootfsPath(id: string): string {
    return path.join(this.#options.directory, id, "rootfs");
  }

  /**
   * Returns the image of a recipe. Builds it unless an image of one of the recipe's ways exists. Fails with
   * `image_failed`.
   */
  async ensure(recipe: ImageRecipe, progress: Progress = () => {}): Promise<Image> {
    const key = recipe.user === true ? `${recipe.name} with a user` : recipe.name;
    const running = this.#builds.get(key);
    if (running !== undefined) {
      running.listeners.add(progress);
      // A step may take minutes before it reports again.
      if (running.last !== undefined) progress(running.last);
      return running.image;
    }
    const listeners = new Set([progress]);
    const report: Progress = (made) => {
      build.last = made;
      listeners.forEach((listener) => listener(made));
    };
    const image = this.#find(recipe, report).finally(() => this.#builds.delete(key));
    const build: Build = { image, listeners, last: undefined };
    this.#builds.set(key, build);
    return image;
  }

  /**
   * Makes the image `to.id` from image `base` and the capture stream of a machine. An imported base is copied
   * from `mounted`, which returns one directory with all of its layers. Fails with `already_exists` if the id
   * is in use, and as `applyCapture` does.
   */
  async capture(
    base: string,
    to: { id: string; name: string },
    stream: AsyncIterable<Buffer>,
    limits: CaptureLimits,
    mounted: (files: ImageFiles) => Promise<string>,
  ): Promise<Image> {
    if (!IMAGE_ID.test(to.id)) throw new RuntimeError("failed", `"${to.id}" is not an image id`);
    await this.#sweepOnce();
    const record = await this.#readRecord(base);
    if (record === undefined) throw new RuntimeError("not_found", `there is no image ${base}`);
    const { layers, ...inherited } = record;
    const from = layers === undefined ? this.rootfsPath(base) : await mounted(await this.filesOf(base));
    return this.#withDirectory("building", async (aside) => {
      const rootfs = path.join(aside, to.id, "rootfs");
      // The directory is closed to other users from the first byte on: the stream may contain set-user-id programs of
      // any user.
      await mkdir(path.dirname(rootfs), { mode: 0o700 });
      // An unchanged file is a hard link, which costs one name in each image. Layers are copied instead: the builder
      // may delete them, and hard links do not cross the mount that combines them.
      await run(["cp", layers === undefined ? "-al" : "-a", from, rootfs], { timeoutMs: COPY_TIMEOUT_MS });
      await applyCapture(rootfs, stream, limits);
      await finish(rootfs);
      const sizeBytes = await usedBytes(rootfs);
      const image: Image = { ...inherited, ...to, base, sizeBytes, createdAt: new Date() };
      await this.#publish(aside, image, throwExists(to.id));
      return image;
    });
  }

  /** Stores only the record. Fails with `already_exists`, and with `image_failed` if a layer is not a directory. */
  async import({ layers, ...image }: LayeredImage): Promise<Image> {
    if (!IMAGE_ID.test(image.id)) throw new RuntimeError("failed", `"${image.id}" is not an image id`);
    if (layers.length === 0 || layers.length > MAX_LAYERS) {
      throw new RuntimeError(
        "image_failed",
        `an image of ${layers.length} layers cannot be used; the limit is ${MAX_LAYERS}`,
      );
    }
    for (const layer of layers) {
      const isDirectory =
        path.isAbsolute(layer) && (await lstat(layer).catch(() => undefined))?.isDirectory();
      if (!isDirectory) throw new RuntimeError("image_failed", "a layer of the image is missing");
    }
    await this.#sweepOnce();
    return this.#withDirectory("building", async (aside) => {
      const made: Image = {
        ...image,
        contents: {},
        substituted: false,
        service: null,
        createdAt: new Date(),
      };
      await mkdir(path.join(aside, image.id), { mode: 0o700 });
      await this.#publish(aside, { ...made, layers }, throwExists(image.id));
      return made;
    });
  }

  async filesOf(id: string): Promise<ImageFiles> {
    const layers = (await this.#readRecord(id))?.layers;
    return { id, layers: layers ?? [this.rootfsPath(id)], isOurs: layers === undefined };
  }

  /** Returns complete images. */
  async list(): Promise<Image[]> {
    await this.#sweepOnce();
    const names = await readdir(this.#options.directory);
    const images = await Promise.all(names.toSorted().map((name) => this.#read(name)));
    return images.filter((image) => image !== undefined);
  }

  /** Removes an image, or succeeds if it is missing. The caller must ensure that no machine uses it. */
  async remove(id: string): Promise<void> {
    if (!IMAGE_ID.test(id)) throw new RuntimeError("not_found", `there is no image ${id}`);
    await this.#sweepOnce();
    await this.#withDirectory("removing", async (aside) => {
      await rename(path.join(this.#options.directory, id), path.join(aside, id)).catch(ignoreMissing);
    });
  }

  async #find(recipe: ImageRecipe, progress: Progress): Promise<Image> {
    await this.#sweepOnce();
    this.#recipes ??= loadRecipes(this.#options.recipesDirectory ?? BUILT_IN_RECIPES);
    const find = finder([recipe, ...(await this.#recipes)]);
    for (const way of recipe.ways.keys()) {
      const image = await this.#read(imageId(recipe, way, find));
      if (image !== undefined) return image;
    }
    if (recipe.user === true) {
      const base = await this.ensure(withoutUser(recipe), progress);
      const way = [...recipe.ways.keys()].find(
        (each) => imageId(withoutUser(recipe), each, find) === base.id,
      );
      return this.#addUser(base, imageId(recipe, way ?? 0, find));
    }
    const failures: string[] = [];
    for (const way of recipe.ways.keys()) {
      try {
        return await this.#build(recipe, way, find, progress);
      } catch (error) {
        failures.push((error as Error).message);
      }
    }
    throw new RuntimeError("image_failed", `image ${recipe.name} could not be made: ${failures.join(" | ")}`);
  }

  /** Makes an image that shares its files with `base` and has the ordinary user. */
  #addUser(base: Image, id: string): Promise<Image> {
    return this.#withDirectory("building", async (aside) => {
      const rootfs = path.join(aside, id, "rootfs");
      await mkdir(path.dirname(rootfs));
      await run(["cp", "-al", this.rootfsPath(base.id), rootfs], { timeoutMs: COPY_TIMEOUT_MS });
      await addUser(rootfs);
      const image: Image = { ...base, id, createdAt: new Date() };
      // Another process may have made the image first; its result is the same.
      await this.#publish(aside, image, ignoreExisting);
      return image;
    });
  }

  async #build(recipe: ImageRecipe, way: number, find: FindRecipe, progress: Progress): Promise<Image> {
    const id = imageId(recipe, way, find);
    return this.#withDirectory("building", async (aside) => {
      const rootfs = path.join(aside, id, "rootfs");
      await mkdir(rootfs, { recursive: true });
      const bases: Image[] = [];
      await makeSteps(recipe.ways[way]?.steps ?? [], {
        rootfs,
        progress: ({ fraction, step }) => progress({ fraction: fraction * 0.95, step }),
        baseRootfs: async (name, progress) => {
          const base = await this.ensure(withoutUser(find(name)), progress);
          bases.push(base);
          return this.rootfsPath(base.id);
        },
      });
      progress({ fraction: 0.95, step: "trusting the host's certificates" });
      await trustHost(rootfs, (argv) => runInside(rootfs, argv));
      await finish(rootfs);
      progress({ fraction: 0.97, step: "checking the contents" });
      const contents = await probe(recipe, rootfs);
      const substitute =
        bases.find((base) => base.substitute !== undefined)?.substitute ??
        substituteFor(recipe.promise, contents);
      const image: Image = {
        id,
        name: recipe.name,
        sizeBytes: await usedBytes(rootfs),
        env: { PATH: IMAGE_PATH, LANG: "C.UTF-8", ...TRUST_ENVIRONMENT, ...recipe.env },
        contents,
        substituted:
          recipe.ways[way]?.substitute === true ||
          bases.some((base) => base.substituted) ||
          substitute !== undefined,
        ...(substitute === undefined ? {} : { substitute }),
        service: recipe.service ?? bases.at(-1)?.service ?? null,
        createdAt: new Date(),
      };
      progress({ fraction: 0.98, step: "writing to disk" });
      // Another process may have made the image first; its result is the same.
      await this.#publish(aside, image, ignoreExisting);
      progress({ fraction: 1, step: "ready" });
      return image;
    });
  }

  /** Renames the image to its id after everything is on disk, its record last. */
  async #publish(
    aside: string,
    image: ImageRecord,
    notRenamed: (error: NodeJS.ErrnoException) => void,
  ): Promise<void> {
    await writeFile(path.join(aside, image.id, "image.json"), `${JSON.stringify(image, null, 2)}\n`);
    await run(["sync", "-f", aside], { timeoutMs: DU_TIMEOUT_MS });
    await rename(path.join(aside, image.id), path.join(this.#options.directory, image.id)).catch(notRenamed);
  }

  async #read(id: string): Promise<Image | undefined> {
    const record = await this.#readRecord(id);
    if (record === undefined) return undefined;
    const { layers: _, ...image } = record;
    return image;
  }

  async #readRecord(id: string): Promise<ImageRecord | undefined> {
    const text = await readFile(path.join(this.#options.directory, id, "image.json"), "utf8").catch(
      () => undefined,
    );
    if (text === undefined || id.startsWith(".")) return undefined;
    const image = JSON.parse(text) as ImageRecord;
    // Records from before services existed have no such field.
    return { ...image, service: image.service ?? null, createdAt: new Date(image.createdAt) };
  }

  /** Provides a directory next to the images for `work`, and deletes it afterwards with its content. */
  async #withDirectory<T>(what: "building" | "removing", work: (aside: string) => Promise<T>): Promise<T> {
    const aside = path.join(this.#options.directory, `.${what}-${process.pid}-${++counter}`);
    ours.add(aside);
    try {
      await mkdir(aside);
      return await work(aside);
    } finally {
      await rm(aside, { recursive: true, force: true });
      ours.delete(aside);
    }
  }

  #sweepOnce(): Promise<void> {
    this.#swept ??= this.#sweep();
    return this.#swept;
  }

  /** Deletes the leftovers of builds whose processes have ended. */
  async #sweep(): Promise<void> {
    await mkdir(this.#options.directory, { recursive: true, mode: 0o755 });
    for (const name of await readdir(this.#options.directory)) {
      const owner = UNFINISHED.exec(name)?.[1];
      const leftover = path.join(this.#options.directory, name);
      if (owner === undefined || ours.has(leftover)) continue;
      // A leftover may have this process's number, from before a restart of the host or the container.
      if (Number(owner) !== process.pid && isAlive(Number(owner))) continue;
      await unmountBelow(leftover);
      await rm(leftover, { recursive: true, force: true });
    }
  }
}

/**
 * Returns the version in the output of a probe, or the whole output if it contains no version: `Python 3.13.5` →
 * `3.13.5`.
 */
export function versionIn(output: string): string {
  const [line = ""] = output.trim().split("\n");
  return /\d+(?:\.\d+)+[\w.+~-]*/.exec(line)?.[0] ?? line.trim();
}

/**
 * Returns the installed version of the first promise that does not hold. 3.12.7 satisfies `3.12`; 3.120 and 3.13 do
 * not.
 */
export function substituteFor(
  promise: Record<string, string>,
  contents: Record<string, string>,
): string | undefined {
  const broken = Object.entries(promise).find(
    ([name, version]) => !`${contents[name] ?? ""}.`.startsWith(`${version}.`),
  );
  return broken && (contents[broken[0]] ?? "none");
}

async function probe(recipe: ImageRecipe, rootfs: string): Promise<Record<string, string>> {
  const contents: Record<string, string> = {};
  for (const [name, argv] of Object.entries(recipe.probes)) {
    try {
      contents[name] = versionIn(await runInside(rootfs, argv));
    } catch (error) {
      const why = (error as Error).message;
      throw new RuntimeError("image_failed", `the image has no working ${name}: ${why}`, {
        cause: error,
      });
    }
  }
  return contents;
}

async function usedBytes(directory: string): Promise<number> {
  const { stdout } = await run(["du", "-sx", "--block-size=1", directory], { timeoutMs: DU_TIMEOUT_MS });
  return Number.parseInt(stdout, 10);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/** Returns a function that handles the error of a rename onto an existing directory. */
function throwExists(id: string): (error: NodeJS.ErrnoException) => never {
  return (error) => {
    throw error.code === "ENOTEMPTY" || error.code === "EEXIST"
      ? new RuntimeError("already_exists", `image ${id} exists already`)
      : error;
  };
}

function ignoreExisting(error: NodeJS.ErrnoException): void {
  if (error.code !== "ENOTEMPTY" && error.code !== "EEXIST") throw error;
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== "ENOENT") throw error;
}
