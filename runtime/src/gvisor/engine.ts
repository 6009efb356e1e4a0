/**
 * Machines with their own kernel: gVisor lays a writable layer over an image's files, and keeps it on the
 * machine's disk.
 */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Bundle, Engine } from "../linux/engine.ts";
import type { LinuxMachine } from "../linux/machine.ts";
import type { ImageRoots } from "../rootfs/layers.ts";
import { runArgv, type Platform } from "./runsc.ts";
import { ociSpec } from "./spec.ts";

export interface GvisorOptions {
  runsc: string;
  platform: Platform;
  roots: ImageRoots;
  maskProcSysNet: boolean;
}

export class GvisorEngine implements Engine {
  readonly isolation = "gvisor";
  readonly disk = "one file";
  readonly maskProcSysNet: boolean;
  readonly #options: GvisorOptions;

  constructor(options: GvisorOptions) {
    this.#options = options;
    this.maskProcSysNet = options.maskProcSysNet;
  }

  async prepare({ machine, image, ...bundle }: Bundle): Promise<void> {
    const { paths, spec } = machine;
    const oci = ociSpec({
      ...bundle,
      paths,
      rootfs: await this.#options.roots.rootOf(image),
      hostname: spec.hostname,
      maxProcesses: spec.resources.maxProcesses,
      sharedMemoryBytes: machine.sharedMemoryBytes,
      hasVolume: spec.volume !== undefined,
    });
    await writeFile(join(paths.directory, "config.json"), JSON.stringify(oci));
  }

  runArgv({ paths, id }: LinuxMachine): string[] {
    return runArgv({ ...this.#options, paths, id });
  }
}
