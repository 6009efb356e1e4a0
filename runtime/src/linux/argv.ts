/** The command lines of the shim and the disk image: pure, and tested as text. */
import { splitLayer } from "../oci/store.ts";

/** The descriptor the shim writes its status line to. */
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

/** Layers, the lowest first, as one read-only mount. See shim/root.c for both. */
export function sharedRootArgv(shim: string, { at, layers }: { at: string; layers: string[] }): string[] {
  return [shim, "root", "--at", at, "--", ...layers.map(layerArgument)];
}

/** Marks the builders' part of a path with `/./`. The shim follows no symlink below it. */
function layerArgument(layer: string): string {
  const { trusted, names } = splitLayer(layer);
  return names.length === 0 ? layer : `${trusted}/./${names.join("/")}`;
}

export interface OwnRoot {
  at: string;
  layers: string[];
  /** Users inside from 0 on are these on the host. */
  map: { first: number; count: number };
  /** File that its user namespace is mounted on. */
  users: string;
  disk: string;
  netns: string;
  volume?: string;
}

/** A native machine's root: its layers, its disk, its volume and what its kernel says of its network. */
export function ownRootArgv(
  shim: string,
  { at, layers, map, users, disk, netns, volume }: OwnRoot,
): string[] {
  const more = volume === undefined ? [] : ["--volume", volume];
  const space = ["--map", `${map.first}:${map.count}`, "--users", users];
  const own = [...space, "--disk", disk, "--netns", netns, ...more];
  return [shim, "root", "--at", at, ...own, "--", ...layers.map(layerArgument)];
}

/** gVisor keeps one file on a machine's disk, a native machine all that it writes. */
export type DiskLayout = "one file" | "many files";

/**
 * The filesystem dies with the machine: no journal and no reserved blocks. 16 inodes give the guest all but 64 KiB of
 * 10 GiB; one for each 16 KiB costs 1/64 of it. Made in 5 ms either way.
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
 * Not noexec: what the guest wrote is run from here. The inode tables lie in a file that began as a hole, so nothing has
 * to write zeros to them.
 */
export function mountArgv(image: string, directory: string): string[] {
  return ["mount", "-o", "loop,nodev,nosuid,noatime,noinit_itable", image, directory];
}

/** The error an engine logged last: as JSON, in runsc one object after the other without a separator. */
export function lastError(log: string): string | undefined {
  const messages = log.match(/"msg":"(?:[^"\\]|\\.)*"/g) ?? [];
  const last = messages.at(-1);
  return last === undefined ? undefined : (JSON.parse(`{${last}}`) as { msg: string }).msg;
}
