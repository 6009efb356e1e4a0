/**
 * What isolates a machine's processes, behind the one driver. Its record, slot, control group, namespace, disk, volume and
 * connection are the same for every engine; an engine says how the disk is laid out, lays the bundle (config.json and
 * what that speaks of) and names the program that starts it. What only one of them can do, such as a checkpoint, is not
 * here.
 */
import type { Isolation } from "../driver.ts";
import type { ImageFiles } from "../rootfs/images.ts";
import type { DiskLayout } from "./argv.ts";
import type { LinuxMachine } from "./machine.ts";

export interface Bundle {
  machine: LinuxMachine;
  image: ImageFiles;
  netnsPath: string;
  cgroupsPath: string;
  guestBinary: string;
  resolvConf: string;
}

export interface Engine {
  readonly isolation: Isolation;
  readonly disk: DiskLayout;
  /** Whether its program must not see the kernel's network settings: `shim run --mask-proc-sys-net`. */
  readonly maskProcSysNet: boolean;
  /** Lays the bundle, once the machine's disk, volume, control group and network are there. Undone by `cleanUp`. */
  prepare(bundle: Bundle): Promise<void>;
  /** Starts what was prepared and returns. */
  runArgv(machine: LinuxMachine, netnsPath: string): string[];
}
