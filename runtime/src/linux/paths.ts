/**
 * Paths of a machine. Files that must outlive the server's process are below the state directory:
 *
 *     <state>/machines/<id>/machine.json   the record, written before anything is started and removed last
 *     <state>/machines/<id>/config.json    the OCI spec
 *     <state>/machines/<id>/disk.img       the machine's disk, a sparse ext4 image, mounted on
 *     <state>/machines/<id>/disk/          the upper layer of the root filesystem
 *     <state>/machines/<id>/volume/        mount point of the volume, if the machine has one
 *     <state>/machines/<id>/engine.log     errors of runsc or runc itself, no output from inside
 *     <state>/mount-points/                layer with Kontor's mount points, above the layers of an image
 *     <state>/roots/<image>/               read-only mount of an image's layers for gVisor
 *     <state>/guests/<build>/kontor-guest  PID 1, every build that any machine was started with
 *     <state>/runsc/<version>              every runsc that a machine or a checkpoint needs
 *
 * Files that a reboot may delete are below /run. The short names keep unix sockets within their 107 bytes for
 * any state directory:
 *
 *     /run/kontor/<n>/<id>/guest/guest.sock PID 1 connects to this; the directory is /.kontor/run inside,
 * read-only
 *     /run/kontor/<n>/<id>/runsc/           state of runsc or runc: one root per machine, so ids cannot be
 * mixed up
 *     /run/kontor/<n>/<id>/root/            mount of a native machine's root filesystem
 *     /run/kontor/<n>/<id>/users            mount of its user namespace
 *     /run/kontor/users/<range>             leases of the host's user ids, for all installations
 * (../runc/users.ts)
 */
import { join } from "node:path";
import type { MachineId } from "../driver.ts";

export interface MachinePaths {
  directory: string;
  record: string;
  log: string;
  diskImage: string;
  disk: string;
  volume: string;
  runDirectory: string;
  guestDirectory: string;
  guestSocket: string;
  engineRoot: string;
  root: string;
  users: string;
}

export interface HostPaths {
  machines: string;
  images: string;
  guests: string;
  runsc: string;
  resolvConf: string;
  mountPoints: string;
  roots: string;
  run: string;
  users: string;
}

export function hostPaths(stateDir: string, instance: number): HostPaths {
  return {
    machines: join(stateDir, "machines"),
    images: join(stateDir, "images"),
    guests: join(stateDir, "guests"),
    runsc: join(stateDir, "runsc"),
    resolvConf: join(stateDir, "resolv.conf"),
    mountPoints: join(stateDir, "mount-points"),
    roots: join(stateDir, "roots"),
    run: `/run/kontor/${instance}`,
    users: "/run/kontor/users",
  };
}

export function machinePaths(host: HostPaths, id: MachineId): MachinePaths {
  const directory = join(host.machines, id);
  const runDirectory = join(host.run, id);
  return {
    directory,
    record: join(directory, "machine.json"),
    log: join(directory, "engine.log"),
    diskImage: join(directory, "disk.img"),
    disk: join(directory, "disk"),
    volume: join(directory, "volume"),
    runDirectory,
    guestDirectory: join(runDirectory, "guest"),
    guestSocket: join(runDirectory, "guest", "guest.sock"),
    engineRoot: join(runDirectory, "runsc"),
    root: join(runDirectory, "root"),
    users: join(runDirectory, "users"),
  };
}

const MACHINE_ID = /^m[a-z0-9]{19}$/;

/**
 * Returns whether the text is a machine id. Ids become path components, cgroup names and arguments of programs, so
 * every other form is rejected first.
 */
export function isMachineId(text: string): boolean {
  return MACHINE_ID.test(text);
}
