/**
 * An isolation engine below the one driver. Record, slot, control group, namespace, disk, volume and connection of a
 * machine are the same for every engine. An engine defines the layout of the disk, writes the bundle (config.json and
 * its files) and names the program that starts it. Features of only one engine, such as checkpoints, are not part of
 * this interface.
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
  /** True if the engine must not see the kernel's network settings: `shim run --mask-proc-sys-net`. */
  readonly maskProcSysNet: boolean;
  /**
   * Writes the bundle, after the machine's disk, volume, control group and network exist. `cleanUp` reverts
   * it.
   */
  prepare(bundle: Bundle): Promise<void>;
  /** Returns the command that starts the prepared machine and exits. */
  runArgv(machine: LinuxMachine, netnsPath: string): string[];
}
