/**
 * Boots one machine, from its image or from a checkpoint. The record is written first. Then disk, volume, control
 * group, network and socket are made concurrently. Then follow the bundle, the start of the engine, and the first
 * response of the guest. After a failure, the caller removes what was made.
 *
 * Measured on two cores with little other load: preparation 19 ms, runsc 130 ms, guest 15 ms. Twenty at once:
 * 2.6 s.
 */
import { mkdir, readFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";
import type { Cgroups } from "../cgroup/cgroups.ts";
import { RuntimeError, type MachineId } from "../driver.ts";
import type { HostNetwork } from "../network/network.ts";
import { waitForAll } from "../wait-for-all.ts";
import { attachVolume } from "../volumes/image.ts";
import type { ImageFiles } from "../rootfs/images.ts";
import { makeDisk } from "./disk.ts";
import type { Engine } from "./engine.ts";
import type { LinuxMachine } from "./machine.ts";
import { writeRecord } from "./records.ts";
import { startUnderShim } from "./start.ts";

/**
 * Timeout of a guest's first connection. A guest connects within 50 ms of its start. A host that boots twenty guests at
 * once needs seconds.
 */
const GUEST_TIMEOUT_MS = 20_000;

export interface CreateNeeds {
  engine: Engine;
  cgroups: Cgroups;
  network: HostNetwork;
  image: ImageFiles;
  guestBinary: string;
  shimBinary: string;
  resolvConf: string;
  reached?: (point: string) => Promise<void>;
}

/** Duration of each part in milliseconds. */
export interface CreateTimings {
  prepareMs: number;
  engineMs: number;
  guestMs: number;
}

/** Start of the machine by the engine, if not by the usual boot of an image. */
export interface Start {
  argv: string[];
  timeoutMs: number;
  /** Kill point that is reported once the machine has started. */
  reached: string;
}

export async function bootMachine(
  needs: CreateNeeds,
  machine: LinuxMachine,
  start?: Start,
): Promise<CreateTimings> {
  const { engine, cgroups, network, guestBinary, resolvConf, image } = needs;
  const { paths, spec, slot, id } = machine;
  const begin = performance.now();
  await mkdir(paths.directory, { recursive: true, mode: 0o700 });
  await writeRecord(paths.record, machine.record, { durable: true });
  await mkdir(paths.runDirectory, { recursive: true, mode: 0o710 });
  const [{ netnsPath }] = await waitForAll(
    network.attach(slot, spec.network, spec.privateNetwork?.group),
    mkdir(paths.guestDirectory, { recursive: true, mode: 0o755 }).then(() => machine.connections.listen()),
    mkdir(paths.engineRoot, { recursive: true, mode: 0o700 }),
    makeDisk(paths, spec.resources.diskBytes, engine.disk),
    cgroups.create(id, spec.resources, engine.isolation),
    ...(spec.volume === undefined ? [] : [attachVolume(spec.volume, paths.volume)]),
  );
  const cgroupsPath = cgroups.pathOf(id);
  await engine.prepare({ machine, image, netnsPath, cgroupsPath, guestBinary, resolvConf });
  const prepared = performance.now();
  const starting = startUnderShim({
    shim: needs.shimBinary,
    maskProcSysNet: engine.maskProcSysNet,
    log: paths.log,
    argv: start?.argv ?? engine.runArgv(machine, netnsPath),
    ...(start === undefined ? {} : { timeoutMs: start.timeoutMs }),
  });
  // A checkpoint may be as large as the machine, so gVisor needs its headroom during the restore.
  if (start !== undefined)
    await whenSized(cgroups, id, starting, () => cgroups.setLimits(id, spec.resources, engine.isolation));
  await starting;
  await cgroups.setLimits(id, spec.resources, engine.isolation);
  const started = performance.now();
  await needs.reached?.(start?.reached ?? "create.started");
  await waitForGuest(cgroups, machine);
  await machine.configure();
  // Last step: until the guest responds, the previous machine continues to serve the address, or connections are
  // refused.
  const serves = spec.privateNetwork?.serves;
  if (serves !== undefined) await network.serve(slot, serves);
  return {
    prepareMs: prepared - begin,
    engineMs: started - prepared,
    guestMs: performance.now() - started,
  };
}

const SIZED = /\0--total-memory=/;
const LOOK_MS = 5;

/**
 * Runs `act` once gVisor's kernel has its memory size on its command line. Returns without running `act` if the start
 * ends first.
 */
async function whenSized(
  cgroups: Cgroups,
  id: MachineId,
  starting: Promise<void>,
  act: () => Promise<void>,
): Promise<void> {
  let isOver = false;
  const over = starting.then(
    () => (isOver = true),
    () => (isOver = true),
  );
  while (!isOver) {
    const pids = await cgroups.processes(id);
    const lines = pids.map((pid) => readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => ""));
    if ((await Promise.all(lines)).some((line) => SIZED.test(line))) return act();
    await Promise.race([over, sleep(LOOK_MS)]);
  }
}

/** Waits until PID 1 connects. Fails with `machine_died` once no process of the machine is left. */
export async function waitForGuest(cgroups: Cgroups, machine: LinuxMachine): Promise<void> {
  const deadline = performance.now() + GUEST_TIMEOUT_MS;
  for (;;) {
    try {
      return await machine.guest.ping();
    } catch (error) {
      if (!(error instanceof RuntimeError) || error.kind !== "timeout" || performance.now() > deadline)
        throw error;
      if ((await cgroups.processes(machine.id)).length === 0) {
        const outOfMemory = await cgroups.oomKilled(machine.id);
        throw new RuntimeError(
          "machine_died",
          outOfMemory
            ? "the machine's memory is too small to start it"
            : "the machine ended while it started",
          { cause: error },
        );
      }
    }
  }
}
