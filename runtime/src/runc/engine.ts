/**
 * Machines on the host's own kernel: a user namespace in which root is nobody on the host, the image's layers mapped
 * into it below a writable layer on the machine's disk, a filter of system calls, and a fraction of root's
 * capabilities. 60 ms less to start than gVisor, and no price for a system call; nothing can be checkpointed.
 */
import { chmod, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { run } from "../exec.ts";
import { ownRootArgv } from "../linux/argv.ts";
import type { Bundle, Engine } from "../linux/engine.ts";
import type { LinuxMachine } from "../linux/machine.ts";
import { together } from "../together.ts";
import { runcArgv } from "./runc.ts";
import { nativeSpec, type OwnLimits } from "./spec.ts";
import { FIRST_USER, USERS } from "./users.ts";

export interface NativeOptions {
  runc: string;
  shimBinary: string;
  /** A directory with the places that our mounts go to, laid over every image. */
  mountPoints: string;
  limits: OwnLimits;
}

export class NativeEngine implements Engine {
  readonly isolation = "native";
  readonly disk = "many files";
  readonly maskProcSysNet = false;
  readonly #options: NativeOptions;

  constructor(options: NativeOptions) {
    this.#options = options;
  }

  async prepare({ machine, image, ...bundle }: Bundle): Promise<void> {
    const { paths, spec } = machine;
    const { shimBinary, mountPoints, limits } = this.#options;
    await mkdir(paths.root, { recursive: true, mode: 0o755 });
    // The machine's root looks for its files from the host's root on, until they are all it sees.
    await chmod(paths.runDirectory, 0o711);
    const root = ownRootArgv(shimBinary, {
      at: paths.root,
      layers: [...image.layers, mountPoints],
      map: { first: FIRST_USER, count: USERS },
      disk: paths.disk,
      netns: bundle.netnsPath,
      ...(spec.volume === undefined ? {} : { volume: paths.volume }),
    });
    const oci = nativeSpec({
      ...bundle,
      paths,
      hostname: spec.hostname,
      maxProcesses: spec.resources.maxProcesses,
      limits,
      architecture: process.arch,
    });
    await together(run(root), writeFile(join(paths.directory, "config.json"), JSON.stringify(oci)));
  }

  runArgv({ paths, id }: LinuxMachine): string[] {
    return runcArgv({ runc: this.#options.runc, paths, id });
  }
}
