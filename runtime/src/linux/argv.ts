/** Command lines of the shim and for the disk image: pure, and tested as text. */
import { splitLayer } from "../oci/store.ts";

/** Descriptor for the shim's status line. */
export const SHIM_STATUS_FD = 3;

export function shimArgv(shim: string, options: { maskProcSysNet: boolean }, program: string[]): string[] {
  return [
    shim,
    "run",
    "--status-fd",
    String(SHIM_STATUS_FD),
    ...(options.maskProcSysNet ? ["--mask-proc-sys-net"] : []),
    "--",
    ...program,
  ];
}

/**
 * Returns the command that mounts layers, the lowest first, as one read-only mount. shim/root.c explains both commands.
 */
export function sharedRootArgv(shim: string, { at, layers }: { at: string; layers: string[] }): string[] {
  return [shim, "root", "--at", at, "--", ...layers.map(layerArgument)];
}

/**
 * Returns the layer's path, with `/./` before the part below which builders write. The shim follows no symlink there.
 */
function layerArgument(layer: string): string {
  const { trusted, names } = splitLayer(layer);
  return names.length === 0 ? layer : `${trusted}/./${names.join("/")}`;
}

export interface OwnRoot {
  at: string;
  layers: string[];
  /** Range of the host's users to which the machine's users from 0 on are mapped. */
  map: { first: number; count: number };
  /** File on which the machine's user namespace is mounted. */
  users: string;
  disk: string;
  netns: string;
  volume?: string;
}

/**
 * Returns the command that mounts a native machine's root: its layers, its disk, its volume and the /sys of its network
 * namespace.
 */
export function ownRootArgv(
  shim: string,
  { at, layers, map, users, disk, netns, volume }: OwnRoot,
): string[] {
  const more = volume === undefined ? [] : ["--volume", volume];
  const space = ["--map", `${map.first}:${map.count}`, "--users", users];
  const own = [...space, "--disk", disk, "--netns", netns, ...more];
  return [shim, "root", "--at", at, ...own, "--", ...layers.map(layerArgument)];
}

/** gVisor keeps one file on a machine's disk. A native machine keeps all files that it writes. */
export type DiskLayout = "one file" | "many files";

/**
 * Returns the command that makes a disk's filesystem. The filesystem ends with the machine, so it has no journal and no
 * reserved blocks. 16 inodes leave the guest all but 64 KiB of 10 GiB; one inode for each 16 KiB costs 1/64 of the
 * disk. Either layout is made in 5 ms.
 */
export function mkfsArgv(image: string, layout: DiskLayout): string[] {
  return [
    "mkfs.ext4",
    "-q",
    "-F",
    "-m0",
    ...(layout === "one file" ? ["-N16"] : ["-i16384", "-I256"]),
    "-O",
    "^has_journal,^resize_inode",
    "-E",
    "lazy_itable_init=1,nodiscard",
    image,
  ];
}

/**
 * Returns the command that mounts a disk. The command omits noexec, because the guest's own programs run from the disk.
 * The image file starts as a hole, so the inode tables need no writing of zeros.
 */
export function mountArgv(image: string, directory: string): string[] {
  return ["mount", "-o", "loop,nodev,nosuid,noatime,noinit_itable", image, directory];
}

/**
 * Returns the last error that an engine logged. The log is JSON; runsc writes one object after the other without a
 * separator.
 */
export function lastError(log: string): string | undefined {
  const messages = log.match(/"msg":"(?:[^"\\]|\\.)*"/g) ?? [];
  const last = messages.at(-1);
  return last === undefined ? undefined : (JSON.parse(`{${last}}`) as { msg: string }).msg;
}
