/**
 * The runsc builds of this host, each stored under its version. A sandbox is checkpointed and resumed by the build that
 * runs it, and a checkpoint restores only with the build that wrote it. An upgrade of runsc must therefore keep the
 * older build for running and paused machines. A build that no machine and no snapshot needs is pruned.
 */
import { access, constants, copyFile, mkdir, readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { delimiter, isAbsolute, join } from "node:path";
import { RuntimeError } from "../driver.ts";
import { run } from "../exec.ts";

/** Matches the output of `runsc --version`. The version becomes a file name, so its characters are restricted. */
const VERSION = /^runsc version ([A-Za-z0-9][A-Za-z0-9.+~_-]{0,100})$/m;

export class RunscBuilds {
  readonly #directory: string;
  readonly #program: string;
  readonly #kept = new Set<string>();
  #current: string | undefined;
  #currentPath = "";

  /** `program` starts new machines: a path, or a name on PATH. */
  constructor(directory: string, program: string) {
    this.#directory = directory;
    this.#program = program;
  }

  async open(): Promise<void> {
    const { stdout } = await run([this.#program, "--version"]);
    const build = VERSION.exec(stdout)?.[1];
    if (build === undefined) {
      const words = stdout.split("\n")[0] ?? "";
      throw new RuntimeError("host_unsupported", `${this.#program} --version prints no version: ${words}`);
    }
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#directory)) if (!name.endsWith(".new")) this.#kept.add(name);
    const source = await find(this.#program);
    await this.#keep(build, source);
    this.#current = build;
    // When the data directory is mounted noexec, the program is started from its original path.
    const copy = join(this.#directory, build);
    this.#currentPath = await access(copy, constants.X_OK).then(
      () => copy,
      () => source,
    );
  }

  /** Returns the build that starts new machines. */
  get current(): string {
    if (this.#current === undefined) throw new RuntimeError("failed", "the driver is not open");
    return this.#current;
  }

  /** Returns the builds that can restore a machine. */
  get all(): string[] {
    return [...this.#kept];
  }

  has(build: string): boolean {
    return this.#kept.has(build);
  }

  /** Returns the path of a build's program. A record of an older server names no build, and gets the current one. */
  path(build: string = this.current): string {
    return build === this.#current ? this.#currentPath : join(this.#directory, build);
  }

  /** Removes every build except the current build and the `needed` builds. */
  async prune(needed: ReadonlySet<string>): Promise<void> {
    for (const build of this.#kept) {
      if (build === this.#current || needed.has(build)) continue;
      await rm(join(this.#directory, build), { force: true });
      this.#kept.delete(build);
    }
  }

  /**
   * Copies a build's program. A package may be rebuilt under the same version, so a copy with another size or time is
   * replaced.
   */
  async #keep(build: string, source: string): Promise<void> {
    const copy = join(this.#directory, build);
    const [given, kept] = await Promise.all([stat(source), stat(copy).catch(() => undefined)]);
    if (kept?.size !== given.size || kept.mtime.getTime() !== given.mtime.getTime()) {
      const aside = `${copy}.new`;
      await copyFile(source, aside, constants.COPYFILE_FICLONE);
      await utimes(aside, given.atime, given.mtime);
      await rename(aside, copy);
    }
    this.#kept.add(build);
  }
}

async function find(program: string): Promise<string> {
  if (isAbsolute(program)) return program;
  for (const directory of (process.env["PATH"] ?? "").split(delimiter)) {
    const path = join(directory, program);
    if ((await stat(path).catch(() => undefined))?.isFile()) return path;
  }
  throw new RuntimeError("host_unsupported", `${program} is not installed`);
}
