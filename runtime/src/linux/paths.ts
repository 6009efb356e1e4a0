/**
 * Where a machine's things lie. What must outlive the server's process is below the state directory:
 *
 *     <state>/machines/<id>/machine.json   the record, written before anything is started and removed last
 *     <state>/machines/<id>/config.json    the OCI spec
 *     <state>/machines/<id>/disk.img       what the guest may write, a sparse ext4 image, mounted on
 *     <state>/machines/<id>/disk/          where the upper layer of the root filesystem is kept
 *     <state>/machines/<id>/volume/        where its volume is mounted, if it has one
 *     <state>/machines/<id>/engine.log     errors of runsc or runc itself, nothing from inside
 *     <state>/mount-points/                laid over images of layers: the places our own mounts go to
 *     <state>/roots/<image>/               where the layers of an image are mounted for gVisor, in its turn read-only
 *     <state>/guests/<build>/kontor-guest  PID 1, every build that any machine was started with
 *     <state>/runsc/<version>              every runsc that a machine or a checkpoint needs
 *
 * What is true only while the host is up is below /run, whose short names keep unix sockets within their 107 bytes
 * whatever the state directory is called:
 *
 *     /run/kontor/<n>/<id>/guest/guest.sock PID 1 inside dials this; the directory is /.kontor/run inside, read-only
 *     /run/kontor/<n>/<id>/runsc/           runsc's or runc's own state: one root per machine, so ids cannot be mixed up
 *     /run/kontor/<n>/<id>/root/            where a native machine's root filesystem is mounted
 *     /run/kontor/<n>/<id>/users            where its user namespace is mounted
 *     /run/kontor/users/<range>             leases of the host's user ids, of all installations (../runc/users.ts)
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

/** Ids become path components, cgroup names and arguments of programs: nothing else than this shape gets that far. */
export function isMachineId(text: string): boolean {
  return MACHINE_ID.test(text);
}
