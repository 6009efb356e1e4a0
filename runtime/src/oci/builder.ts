/**
 * App images, made by buildah from a directory and a Dockerfile. Directory and Dockerfile are untrusted. Instructions
 * are checked before the builder reads them (dockerfile.ts). The builder runs as root of a user namespace, in its own
 * namespaces and control group. The root directory has none of the host's own files (runtime/shim/enclose.c). The
 * builder is killed when this process ends. Steps are containers inside it. All steps of a build share a slot of the
 * machines' network: they reach the internet, but neither the host nor other machines.
 *
 * Every workspace has its own store, with its layers and its caches, so no build uses the results of another workspace.
 * All workspaces read one store of bases, and none writes to it. Only one build at a time uses a store, and leftovers
 * of a dead build are removed before the next. A failed build leaves no files. Cached layers are deleted once they
 * exceed a number of bytes.
 */
import { mkdir, readdir, readFile, realpath, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { Cgroups } from "../cgroup/cgroups.ts";
import { RuntimeError, type Image, type ImageRecipe, type LentNetwork, type Progress } from "../driver.ts";
import { run } from "../exec.ts";
import { unmountBelow } from "../mounts.ts";
import { withoutUser } from "../rootfs/recipes.ts";
import { KeyedMutex } from "../keyed-mutex.ts";
import { bases, findBase, type Base } from "./bases/bases.ts";
import {
  budArgv,
  ignoreFile,
  importArgv,
  importedName,
  inside,
  pullArgv,
  removeContainersArgv,
  removeImagesArgv,
  tagArgv,
} from "./buildah.ts";
import { contextIn, ownIgnoreFile, isPlainPath } from "./dockerfile/context.ts";
import { type Environment, environmentFile, readDockerfile, wrapping } from "./dockerfile/dockerfile.ts";
import { LogLines } from "./log.ts";
import { authoritiesPath, type PackageSources } from "./bases/registries.ts";
import { bytesBelow, NOT_STARTED, type Run, runEnclosed } from "./enclosure/run.ts";
import { findEngines } from "./engines.ts";
import { stampsOf } from "./stamps.ts";
import { hasContainers, layersOf, layerDirectory, readConfig, readStore, type ImageConfig } from "./store.ts";
import { UserRanges } from "./enclosure/user-ranges.ts";

/** Makes images from directories. */
export interface AppBuilder {
  open(): Promise<void>;
  close(): Promise<void>;
  /**
   * Fails with `image_failed` for a fault that the owner can fix, with `timeout`, with `too_large` beyond its
   * disk, and with `interrupted`.
   */
  build(build: AppBuild, hooks: BuildHooks): Promise<BuiltLayers>;
  /**
   * Fails with `image_failed` for a fault that the owner can fix, with `timeout`, with `too_large` if the build writes
   * more than `diskBytes`, and with `interrupted`.
   */
  importImage(image: ImageImport, hooks: Pick<BuildHooks, "log" | "signal">): Promise<BuiltLayers>;
  /** Makes a base image on this host if it is absent. Fails with `image_failed` if no recipe has the name. */
  prepareBase(name: string, progress: Progress, signal: AbortSignal): Promise<void>;
  /** Returns the ids of complete images. */
  images(): Promise<string[]>;
  /** Returns the directories of an image's layers, the lowest first. Undefined if there is no such image. */
  layers(id: string): Promise<string[] | undefined>;
  /**
   * Removes an image, or succeeds if it is missing. The caller must ensure that no machine uses its layers.
   */
  remove(id: string): Promise<void>;
  /**
   * Deletes caches until all caches are below the limit, starting with the workspace whose last build is oldest. Layers
   * that images need stay.
   */
  prune(): Promise<void>;
}

export interface BuilderOptions {
  /** Directory of stores and caches. */
  directory: string;
  /** Parent of the builds' control groups: one path component, of this installation alone. */
  cgroupParent: string;
  /** Number of the installation on its host: each installation has its own user ids for enclosures. */
  instance: number;
  shimBinary: string;
  /** Paths of the programs for builds. Default of each: the program in /usr. */
  engines?: { buildah: string | null; runc: string | null };
  /** Recipes by name. */
  recipes: ReadonlyMap<string, ImageRecipe>;
  /** Makes the image of a recipe if it is missing, and returns the image with its root filesystem. */
  base: (recipe: ImageRecipe, progress: Progress) => Promise<{ image: Image; rootfs: string }>;
  /** Lends a network to a build. Null: builds reach nothing. */
  network: (() => Promise<LentNetwork>) | null;
  /**
   * Limit in bytes for cached layers, caches and images of all workspaces together. Beyond the limit, caches are
   * deleted.
   */
  cacheBytes: number;
  log: (event: string, fields: Record<string, unknown>) => void;
}

export interface AppBuild {
  /** Id of the new image: `[a-z0-9][a-z0-9_.-]*`. */
  id: string;
  /** Workspace whose caches the build uses: letters, digits and dashes. */
  workspace: string;
  /** A directory of this host, and the path of the context below the directory; `.` is the whole directory. */
  checkout: string;
  context: string;
  dockerfile: string;
  /** Variables that only the commands of the build can read. */
  secrets: Readonly<Record<string, string>>;
  /** Package sources of the commands. */
  sources: PackageSources;
  memoryBytes: number;
  vcpus: number;
  /** Limit of the bytes that the build writes. */
  diskBytes: number;
  timeoutMs: number;
}

/** An image that was downloaded into a directory, in the layout of the `dir:` transport (containers-transports(5)). */
export interface ImageImport extends Pick<
  AppBuild,
  "id" | "workspace" | "memoryBytes" | "vcpus" | "diskBytes" | "timeoutMs"
> {
  /** Contains `version`, `manifest.json`, and each blob under the hexadecimal digits of its digest. */
  directory: string;
  /** Digest of the image's configuration, `sha256:…`. A store uses it as the id of the image. */
  config: string;
}

export interface BuildHooks {
  /** Receives whole lines of the log, without secrets. */
  log: (text: string) => void;
  /**
   * Reports the progress of a base image that is made on this host before the steps. Not called for an existing image.
   */
  onBase?: (name: string, made: { fraction: number; step: string }) => void;
  signal: AbortSignal;
}

export interface BuiltLayers {
  /** Digest of the image's manifest, `sha256:…`. */
  digest: string;
  /** Directories of the layers, the lowest first. The layers stay until `remove`. */
  layers: string[];
  sizeBytes: number;
  config: ImageConfig;
}

/** A file that only a command can read and that no layer contains: a secret of the builder, by `id`. */
interface GivenFile {
  id: string;
  path: string;
  text: string;
}

interface ImageRecord {
  workspace: string;
  image: string;
}

const WORKSPACE = /^[a-z0-9-]{1,64}$/;
const IMAGE_ID = /^[a-z0-9][a-z0-9_.-]{0,62}$/;
const HOUSEKEEPING_MS = 2 * 60_000;
/**
 * Timeout of a pull. Without a route, the lookup of a registry's name fails at once. With a route, a large base takes
 * minutes.
 */
const PULL_MS = 5 * 60_000;
const IMPORT_MS = 60 * 60_000;
/** Share of the progress for making a base; the import into the builder's store takes the rest. */
const madeShare = 0.8;
const MARK_MS = 10 * 60_000;
/** Weight of all builds together under contention for the processors; the server's own process has 1024. */
const CPU_WEIGHT = 512;
const BASES = "bases";
const variablesPath = "/run/kontor-env";

export class OciBuilder implements AppBuilder {
  readonly #options: BuilderOptions;
  readonly #mutex = new KeyedMutex<string>();
  readonly #pulling = new Map<string, Promise<string>>();
  readonly #closing = new AbortController();
  readonly #users: UserRanges;
  /** Directory without symlinks in its path once the builder is open: an enclosure follows no symlink in its paths. */
  #directory: string;
  #cgroups: Cgroups | undefined;
  #engines: ReadonlyMap<string, string> = new Map();

  constructor(options: BuilderOptions) {
    this.#options = options;
    this.#users = new UserRanges(options.instance);
    this.#directory = options.directory;
  }

  /** Deletes the leftovers of builds whose server has ended. */
  async open(): Promise<void> {
    for (const name of ["builds", "images", "workspaces", `${BASES}/store`])
      await mkdir(this.#path(name), { recursive: true, mode: 0o700 });
    this.#directory = await realpath(this.#options.directory);
    this.#engines = await findEngines(this.#options.engines ?? {});
    this.#cgroups = await Cgroups.detect(this.#options.cgroupParent);
    await this.#cgroups.open();
    await this.#cgroups.setWeight(CPU_WEIGHT);
    for (const name of await this.#cgroups.list())
      await this.#cgroups
        .removeTree(name)
        .catch((error: unknown) => this.#notCleanedUp({ group: name, error }));
    await unmountBelow(this.#path("builds"));
    await rm(this.#path("builds"), { recursive: true, force: true });
    await mkdir(this.#path("builds"), { mode: 0o700 });
    const stores = (await readdir(this.#path("workspaces"))).filter((name) => WORKSPACE.test(name));
    await this.#markOldStores(stores);
    for (const store of [...stores, BASES])
      await this.#mutex
        .run(store, () => this.#removeContainers(store))
        .catch((error: unknown) => this.#notCleanedUp({ workspace: store, error }));
  }

  /** Aborts running builds and reverts changes to the host. Images and caches stay. */
  async close(): Promise<void> {
    this.#closing.abort();
    await this.#mutex.waitUntilIdle();
    await this.#cgroups?.removeParent();
  }

  async build(build: AppBuild, hooks: BuildHooks): Promise<BuiltLayers> {
    const signal = AbortSignal.any([hooks.signal, this.#closing.signal]);
    requireNames(build);
    const context = await contextIn(build.checkout, build.context);
    const { env, hidden, authorities } = build.sources;
    const variables = { ...env, ...build.secrets };
    const given: GivenFile[] = [
      ...(Object.keys(variables).length > 0
        ? [{ id: "env", path: variablesPath, text: environmentFile(variables) }]
        : []),
      ...(authorities === null ? [] : [{ id: "authorities", path: authoritiesPath, text: authorities }]),
    ];
    const wrap =
      given.length > 0 ? await this.#environment(build.workspace, context, variables, given) : undefined;
    const { text, bases: wanted } = readDockerfile(build.dockerfile, {
      isPlainPath: (path) => isPlainPath(context, path),
      ...(wrap === undefined ? {} : { environment: wrap }),
    });
    const secrets = [...Object.values(build.secrets), ...hidden];
    const lines = new LogLines(secrets, wrap?.words() ?? [], hooks.log);
    return this.#mutex.run(build.workspace, async () => {
      signal.throwIfAborted();
      const network = (await this.#options.network?.()) ?? null;
      try {
        const before = new Set((await this.#store(build.workspace)).images.map(({ id }) => id));
        try {
          await this.#removeContainers(build.workspace);
          const contexts = new Map<string, string>();
          for (const name of wanted)
            contexts.set(
              name,
              await this.#base(build, name, {
                network,
                lines,
                signal,
                progress: (made) => hooks.onBase?.(name, made),
              }),
            );
          const files = {
            Dockerfile: text,
            ignore: ignoreFile(await ownIgnoreFile(context)),
            ...Object.fromEntries(given.map(({ id, text }) => [id, text])),
          };
          await this.#enclosed(
            { ...build, group: build.id, store: build.workspace, network, files, context, signal, lines },
            budArgv({
              contexts,
              network,
              runtime: this.#runtime,
              name: nameOf(build.id),
              secrets: given.map(({ id }) => id),
            }),
          );
          return await this.#finished(build, before);
        } catch (error) {
          await this.#removeImages(build.workspace, before);
          throw explain(error, lines.last);
        }
      } finally {
        lines.flush();
        await network?.release();
      }
    });
  }

  async importImage(image: ImageImport, hooks: Pick<BuildHooks, "log" | "signal">): Promise<BuiltLayers> {
    const signal = AbortSignal.any([hooks.signal, this.#closing.signal]);
    requireNames(image);
    const { id, workspace, directory, config, ...limits } = image;
    const [, imported] = /^sha256:([0-9a-f]{64})$/.exec(config) ?? [];
    if (imported === undefined) throw new RuntimeError("failed", `"${config}" is not a digest`);
    const context = await contextIn(directory, ".");
    const lines = new LogLines([], [], hooks.log);
    return this.#mutex.run(workspace, async () => {
      signal.throwIfAborted();
      const before = new Set((await this.#store(workspace)).images.map(({ id }) => id));
      // The import runs without a network: the bytes are already here, and an image may name other addresses for its
      // layers.
      const spec = {
        ...limits,
        group: id,
        store: workspace,
        network: null,
        files: {},
        context,
        signal,
        lines,
      };
      try {
        await this.#removeContainers(workspace);
        await this.#ensureBases();
        await this.#enclosed(spec, importArgv);
        await this.#enclosed(spec, tagArgv(imported, nameOf(id)));
        await this.#untag(workspace, importedName);
        const made = await this.#finished(image, before);
        // A fast disk can exceed the limit between two measurements.
        if (made.sizeBytes > limits.diskBytes)
          throw new RuntimeError("too_large", "The layers of the image are larger than its disk.");
        return made;
      } catch (error) {
        await rm(this.#path("images", `${id}.json`), { force: true });
        await this.#removeImages(workspace, before);
        // An equal image existed before, and stays under its other names.
        for (const name of [importedName, nameOf(id)])
          await this.#untag(workspace, name).catch((failure: unknown) =>
            this.#notCleanedUp({ workspace, error: failure }),
          );
        throw explain(error, lines.last);
      } finally {
        lines.flush();
      }
    });
  }

  async prepareBase(name: string, progress: Progress, signal: AbortSignal): Promise<void> {
    const known = findBase(name);
    if (!known) throw new RuntimeError("image_failed", `The base image ${name} is not made on this host.`);
    const lines = new LogLines([], [], () => {});
    const ends = AbortSignal.any([signal, this.#closing.signal]);
    await this.#ownBase(name, known, { lines, signal: ends, progress });
  }

  async images(): Promise<string[]> {
    const names = await readdir(this.#path("images"));
    return names.filter((name) => name.endsWith(".json")).map((name) => name.slice(0, -".json".length));
  }

  async layers(id: string): Promise<string[] | undefined> {
    const record = await this.#record(id);
    if (!record) return undefined;
    const own = await this.#store(record.workspace);
    const image = own.images.find((each) => each.id === record.image);
    return image && layersOf(image, [own, await readStore(this.#path(BASES, "store"))]).directories;
  }

  async remove(id: string): Promise<void> {
    const record = await this.#record(id);
    if (!record) return;
    await this.#mutex.run(record.workspace, async () => {
      await this.#untag(record.workspace, nameOf(id));
      await rm(this.#path("images", `${id}.json`), { force: true });
    });
  }

  async prune(): Promise<void> {
    const names = (await readdir(this.#path("workspaces"))).filter((name) => WORKSPACE.test(name));
    const found = await Promise.all(
      names.map(async (name) => ({ name, usedAt: (await stat(this.#workspace(name))).mtimeMs })),
    );
    for (const { name } of found.toSorted((a, b) => a.usedAt - b.usedAt)) {
      if ((await bytesBelow(this.#path("workspaces"))) <= this.#options.cacheBytes) return;
      await this.#mutex.run(name, async () => {
        await rm(join(this.#workspace(name), "caches"), { recursive: true, force: true });
        await this.#removeImages(name, new Set(), (names) => names.length === 0 || !names.some(isApp));
        this.#options.log("build_cache_pruned", { workspace: name });
      });
    }
  }

  /** Removes a name, and the image with its last name. */
  async #untag(workspace: string, name: string): Promise<void> {
    const { images } = await this.#store(workspace);
    if (images.some(({ names }) => names.includes(name)))
      await this.#housekeep(workspace, ["buildah", "rmi", name]);
  }

  async #finished(
    build: Pick<AppBuild, "id" | "workspace">,
    before: ReadonlySet<string>,
  ): Promise<BuiltLayers> {
    const [own, shared] = await Promise.all([
      this.#store(build.workspace),
      readStore(this.#path(BASES, "store")),
    ]);
    const image = own.images.find(({ names }) => names.includes(nameOf(build.id)));
    if (!image) throw new RuntimeError("failed", "the builder succeeded, but left no image");
    const { directories, sizeBytes } = layersOf(image, [own, shared]);
    await this.#markOpaque(directories.filter((layer) => layer.startsWith(`${own.directory}/`)));
    const config = await readConfig(own.directory, image.id);
    const record: ImageRecord = { workspace: build.workspace, image: image.id };
    const file = this.#path("images", `${build.id}.json`);
    await writeFile(`${file}.unfinished`, JSON.stringify(record), { mode: 0o600 });
    // The builder leaves its bytes in the page cache (fsync=volatile). An image that existed before is on
    // disk.
    if (!before.has(image.id)) await run(["sync", "-f", own.directory], { timeoutMs: HOUSEKEEPING_MS });
    await rename(`${file}.unfinished`, file);
    const now = new Date();
    await utimes(this.#workspace(build.workspace), now, now);
    return { digest: image.digest, layers: directories, sizeBytes, config };
  }

  /** Returns the image of a store with this name: a base made here, or an image from a registry. */
  async #base(
    build: AppBuild,
    name: string,
    {
      progress,
      ...context
    }: {
      network: LentNetwork | null;
      lines: LogLines;
      signal: AbortSignal;
      progress: Progress;
    },
  ): Promise<string> {
    const known = findBase(name);
    const own = { ...context, progress };
    if (known && known.isSubstitute !== true) return this.#ownBase(name, known, own);
    try {
      return await this.#pull(build, fullName(name), context);
    } catch (error) {
      context.signal.throwIfAborted();
      if (error instanceof RuntimeError && error.kind === "too_large") throw error;
      if (known) return this.#ownBase(name, known, own);
      throw new RuntimeError(
        "image_failed",
        `The base image ${name} is not made on this host, and its registry did not give it. Bases that are: ${[...bases.keys()].join(", ")}.`,
        { cause: error },
      );
    }
  }

  async #pull(
    build: AppBuild,
    full: string,
    context: { network: LentNetwork | null; lines: LogLines; signal: AbortSignal },
  ): Promise<string> {
    const { images } = await this.#store(build.workspace);
    if (images.some(({ names }) => names.includes(full))) return full;
    context.lines.say(`pulling ${full} from its registry`);
    await this.#ensureBases();
    await this.#enclosed(
      { ...build, group: build.id, store: build.workspace, files: {}, timeoutMs: PULL_MS, ...context },
      pullArgv(full),
    );
    return full;
  }

  async #ownBase(
    name: string,
    known: Base,
    { lines, signal, progress }: { lines: LogLines; signal: AbortSignal; progress: Progress },
  ): Promise<string> {
    const recipe = this.#options.recipes.get(known.recipe);
    if (!recipe) throw new RuntimeError("image_failed", `This host has no recipe for the base ${name}.`);
    // The making of a base belongs to no build: it may take an hour, and an aborted build does not wait for it.
    const making: Progress = ({ fraction, step }) => {
      if (!signal.aborted) progress({ fraction: fraction * madeShare, step });
    };
    const made = this.#options.base(withoutUser(recipe), making).catch((error: unknown) => {
      throw new RuntimeError(
        "image_failed",
        `The base ${name} could not be made: ${(error as Error).message}`,
        {
          cause: error,
        },
      );
    });
    const { image, rootfs } = await Promise.race([made, rejectOnAbort(signal)]);
    const contents = Object.entries(image.contents).map(([what, version]) => `${what} ${version}`);
    const isOther = image.substituted ? "The version differs from the name." : "";
    lines.say(
      [`${name} is made on this host (${contents.join(", ")}).`, isOther, known.note ?? ""].join(" ").trim(),
    );
    const local = `localhost/kontor/base:${image.id}`;
    // Builds that start meanwhile wait for the same import. The import belongs to no build, and continues when a build
    // is aborted.
    const onImport = () => progress({ fraction: madeShare, step: "importing it into the builder" });
    const importing = this.#pulling.get(local) ?? this.#import(local, { image, rootfs, onImport }, known);
    this.#pulling.set(local, importing);
    try {
      return await importing;
    } finally {
      this.#pulling.delete(local);
      signal.throwIfAborted();
    }
  }

  async #import(
    local: string,
    { image, rootfs, onImport }: { image: Image; rootfs: string; onImport: () => void },
    { command }: Base,
  ): Promise<string> {
    return this.#mutex.run(BASES, async () => {
      const { images } = await readStore(this.#path(BASES, "store"));
      if (images.some(({ names }) => names.includes(local))) return local;
      onImport();
      await this.#removeContainers(BASES);
      const context = this.#path("builds", `base-${image.id}`);
      await mkdir(context, { mode: 0o700 });
      try {
        // Imports an archive: from a directory, the builder would copy the files without their owners.
        const archive = [
          "tar",
          "--create",
          "--numeric-owner",
          "--one-file-system",
          "--xattrs",
          "--exclude=./dev/*",
        ];
        await run([...archive, "--file", join(context, "rootfs.tar"), "--directory", rootfs, "."], {
          timeoutMs: IMPORT_MS,
        });
        const env = Object.entries(image.env).map(
          ([name, value]) => `ENV ${name}=${JSON.stringify(value)}\n`,
        );
        const text = `FROM scratch\nADD rootfs.tar /\n${env.join("")}CMD ${JSON.stringify(command)}\n`;
        await this.#enclosed(
          {
            group: `base-${image.id}-import`,
            store: BASES,
            network: null,
            files: { Dockerfile: text, ignore: "" },
            context,
            memoryBytes: 2 * 1024 ** 3,
            vcpus: availableParallelism(),
            diskBytes: 20 * 1024 ** 3,
            timeoutMs: IMPORT_MS,
            signal: new AbortController().signal,
          },
          budArgv({
            contexts: new Map(),
            network: null,
            runtime: this.#runtime,
            name: local,
            secrets: [],
            isBase: true,
          }),
        );
      } catch (error) {
        await this.#removeContainers(BASES);
        throw error;
      } finally {
        await rm(context, { recursive: true, force: true });
      }
      return local;
    });
  }

  /**
   * Initializes the store of the bases. A builder that only reads the store cannot do this, and fails without
   * its lock files.
   */
  async #ensureBases(): Promise<void> {
    const isThere = () =>
      stat(this.#path(BASES, "store", "overlay-images", "images.lock")).catch(() => undefined);
    if (await isThere()) return;
    await this.#mutex.run(BASES, async () => {
      if (!(await isThere())) await this.#housekeep(BASES, [...removeContainersArgv]);
    });
  }

  #enclosed(
    { store, ...spec }: Omit<Run, "store"> & { store: string },
    argv: readonly string[],
  ): Promise<void> {
    const isBase = store === BASES;
    const home = isBase ? this.#path(BASES) : this.#workspace(store);
    const { shimBinary, log } = this.#options;
    const host = {
      cgroups: this.#opened,
      shimBinary,
      users: this.#users,
      engines: this.#engines,
      builds: this.#path("builds"),
      log,
    };
    return runEnclosed(host, { ...spec, store: { home, bases: this.#path(BASES), isBase } }, argv);
  }

  /**
   * Marks layers for both kinds of mount: the host mounts overlays of machines, and a user namespace mounts overlays of
   * builds. Each kind reads its own marks.
   */
  async #markOpaque(layers: readonly string[]): Promise<void> {
    if (layers.length === 0) return;
    await run([this.#options.shimBinary, "opaque", ...layers], { timeoutMs: MARK_MS });
  }

  /** Marks layers of older servers, whose builds had no user namespace. Runs once for each installation. */
  async #markOldStores(workspaces: readonly string[]): Promise<void> {
    const done = this.#path("layers-are-marked");
    if (await stat(done).catch(() => undefined)) return;
    let isComplete = true;
    for (const workspace of workspaces)
      await this.#markStore(workspace).catch((error: unknown) => {
        isComplete = false;
        this.#notCleanedUp({ workspace, error });
      });
    // The next start tries again.
    if (isComplete) await writeFile(done, "");
  }

  async #markStore(workspace: string): Promise<void> {
    const { directory, layers } = await this.#store(workspace);
    const all = [...layers.keys()].map((id) => layerDirectory(directory, id));
    const found = await Promise.all(all.map((path) => stat(path).catch(() => undefined)));
    // An interrupted build may have left a layer's record without its files.
    await this.#markOpaque(all.filter((_, index) => found[index] !== undefined));
  }

  #notCleanedUp({ error, ...fields }: { error: unknown; group?: string; workspace?: string }): void {
    this.#options.log("build_not_cleaned_up", { ...fields, error: String(error) });
  }

  /** Removes containers that a build left in the store, when no build uses it. */
  async #removeContainers(store: string): Promise<void> {
    const directory = store === BASES ? this.#path(BASES, "store") : join(this.#workspace(store), "store");
    if (await hasContainers(directory)) await this.#housekeep(store, [...removeContainersArgv]);
  }

  /** Removes containers, and images that are neither in `kept` nor used by a caller. */
  async #removeImages(
    workspace: string,
    kept: ReadonlySet<string>,
    isUnwanted: (names: readonly string[]) => boolean = () => true,
  ): Promise<void> {
    await this.#removeContainers(workspace);
    const { images } = await this.#store(workspace);
    const gone = images.filter(({ id, names }) => !kept.has(id) && isUnwanted(names));
    if (gone.length === 0) return;
    // The newest images are removed first: an image on which others are based stays until those are removed.
    const ids = gone.toSorted((a, b) => b.createdAt.getTime() - a.createdAt.getTime()).map(({ id }) => id);
    await this.#housekeep(workspace, removeImagesArgv(ids)).catch((error: unknown) =>
      this.#notCleanedUp({ workspace, error }),
    );
  }

  #housekeep(store: string, argv: string[]): Promise<void> {
    return this.#enclosed(
      {
        group: `housekeeping-${store}`,
        store,
        network: null,
        files: {},
        memoryBytes: 1024 ** 3,
        vcpus: availableParallelism(),
        diskBytes: 10 * 1024 ** 3,
        timeoutMs: HOUSEKEEPING_MS,
        signal: new AbortController().signal,
      },
      argv,
    );
  }

  /**
   * Returns the method by which commands read the variables. `words` collects texts that this method adds to commands.
   */
  async #environment(
    workspace: string,
    context: string,
    variables: Readonly<Record<string, string>>,
    given: readonly GivenFile[],
  ): Promise<Environment & { words: () => string[] }> {
    const secrets = Object.fromEntries(given.map(({ id, path }) => [path, id]));
    const place = { file: variablesPath, secrets };
    const stampOf = await stampsOf(join(this.#workspace(workspace), "stamp.key"), context, variables);
    const words = new Set<string>();
    return {
      ...place,
      stampOf: (step) => {
        const stamp = stampOf(step);
        const { mount, read } = wrapping(place, stamp);
        words.add(mount).add(`${read}; `);
        return stamp;
      },
      words: () => [...words],
    };
  }

  async #record(id: string): Promise<ImageRecord | undefined> {
    if (!IMAGE_ID.test(id)) return undefined;
    const text = await readFile(this.#path("images", `${id}.json`), "utf8").catch(() => undefined);
    return text === undefined ? undefined : (JSON.parse(text) as ImageRecord);
  }

  #store(workspace: string) {
    return readStore(join(this.#workspace(workspace), "store"));
  }

  #workspace(name: string): string {
    return this.#path("workspaces", name);
  }

  #path(...names: string[]): string {
    return join(this.#directory, ...names);
  }

  get #runtime(): string {
    return this.#engines.has("runc") ? `${inside.engines}/runc` : "runc";
  }

  get #opened(): Cgroups {
    if (this.#cgroups === undefined) throw new RuntimeError("failed", "the builder is not open");
    return this.#cgroups;
  }
}

function requireNames({ id, workspace }: Pick<AppBuild, "id" | "workspace">): void {
  if (!WORKSPACE.test(workspace) || !IMAGE_ID.test(id))
    throw new RuntimeError("failed", `"${id}" of "${workspace}" is not a valid build id`);
}

/** Returns the name of an image in a store. */
function nameOf(id: string): string {
  return `localhost/kontor/${id}:app`;
}

/** Returns an error for the build's owner, made from the builder's last lines. */
export function explain(error: unknown, last: string): unknown {
  const isBuilders =
    error instanceof RuntimeError && error.kind === "failed" && error.details["argv0"] !== undefined;
  if (!isBuilders || error.details["code"] === NOT_STARTED) return error;
  const [, file] = /\blchown (\S+): invalid argument/.exec(last) ?? [];
  if (file !== undefined)
    return new RuntimeError(
      "image_failed",
      `The file ${file} belongs to a user or group above 65535, and images here have none. Give it another owner, as COPY and ADD do with --chown.`,
      { cause: error },
    );
  // Example: `… COPY --from=build /app/dist /srv/": checking on sources under "/store/…/merged": copier:
  // stat: "/app/dist": no …`
  const [, missing] = /copier: stat: "([^"\n]{1,300})": no such file or directory/.exec(last) ?? [];
  if (missing !== undefined)
    return new RuntimeError(
      "image_failed",
      `COPY found no ${missing}: no earlier step created it. Create it in a step before COPY, or correct the path.`,
      {
        cause: error,
      },
    );
  const [, own] = /^kontor: (.{1,1000})$/m.exec(last) ?? [];
  if (own !== undefined) return new RuntimeError("image_failed", own, { cause: error });
  // Example: `Error: building at STEP "RUN false": while running runtime: exit status 1`
  const [, step = "", why = ""] =
    /building at STEP "(.*)": (?:while running runtime: )?(.*)$/s.exec(last) ?? [];
  const message = step === "" ? (last.split("\n").at(-1) ?? "") : `${step.slice(0, 300)} failed: ${why}`;
  return new RuntimeError("image_failed", message || "The builder ended without a message.", {
    cause: error,
  });
}

function isApp(name: string): boolean {
  return name.startsWith("localhost/kontor/") && name.endsWith(":app");
}

/** Returns the image name with its registry: `redis` is `docker.io/library/redis`. */
function fullName(name: string): string {
  const [first = "", ...more] = name.split("/");
  const hasRegistry = more.length > 0 && /[.:]|^localhost$/.test(first);
  if (hasRegistry) return name;
  return `docker.io/${more.length > 0 ? name : `library/${name}`}`;
}

/** Rejects when the signal aborts, and never resolves. Use it in a race only. */
function rejectOnAbort(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason as Error);
    else signal.addEventListener("abort", () => reject(signal.reason as Error), { once: true });
  });
}
