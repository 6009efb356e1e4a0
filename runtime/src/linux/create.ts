/**
 * Boots one machine, from its image or from a checkpoint: its record first, then everything it needs at the same time
 * (disk, volume, control group, network, socket), then runsc, then a guest that answers. The caller removes what a failure
 * leaves behind.
 *
 * Measured on two cores with little else running: preparation 19 ms, runsc 130 ms, guest 15 ms. Twenty at once: 2.6 s.
 */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Cgroups } from "../cgroup/cgroups.ts";
import { RuntimeError } from "../driver.ts";
import type { HostNetwork } from "../network/network.ts";
import { together } from "../together.ts";
import { attachVolume } from "../volumes/image.ts";
import { makeDisk } from "./disk.ts";
import type { LinuxMachine } from "./machine.ts";
import { writeRecord } from "./records.ts";
import { restoreArgv, runArgv, type Platform } from "../gvisor/runsc.ts";
import { ociSpec } from "../gvisor/spec.ts";
import { startUnderShim } from "./start.ts";

/** A guest dials in within 50 ms of its start; a host that boots twenty at once needs seconds. */
const GUEST_TIMEOUT_MS = 20_000;
const RESTORE_TIMEOUT_MS = 30_000;
/** The slowest disk that is given the time it needs. */
const RESTORE_BYTES_PER_MS = 25_000;

export interface CreateNeeds {
  cgroups: Cgroups;
  network: HostNetwork;
  rootfs: string;
  guestBinary: string;
  shimBinary: string;
  runsc: string;
  platform: Platform;
  resolvConf: string;
  maskProcSysNet: boolean;
  reached?: (point: string) => Promise<void>;
}

/** Milliseconds each part took. */
export interface CreateTimings {
  prepareMs: number;
  runscMs: number;
  guestMs: number;
}

export function createMachine(needs: CreateNeeds, machine: LinuxMachine): Promise<CreateTimings> {
  const argv = runArgv({ ...needs, paths: machine.paths, id: machine.id });
  return boot(needs, machine, { argv });
}

/** The checkpoint's files are only read. */
export function restoreMachine(
  needs: CreateNeeds,
  machine: LinuxMachine,
  from: { directory: string; direct: boolean; bytes: number },
): Promise<CreateTimings> {
  const argv = restoreArgv({ ...needs, paths: machine.paths, id: machine.id }, from);
  return boot(needs, machine, { argv, timeoutMs: RESTORE_TIMEOUT_MS + from.bytes / RESTORE_BYTES_PER_MS });
}

async function boot(
  needs: CreateNeeds,
  machine: LinuxMachine,
  start: { argv: string[]; timeoutMs?: number },
): Promise<CreateTimings> {
  const { paths, spec, slot, id } = machine;
  const begin = performance.now();
  await mkdir(paths.directory, { recursive: true, mode: 0o700 });
  await writeRecord(paths.record, machine.record, { durable: true });
  await together(
    mkdir(paths.guestDirectory, { recursive: true, mode: 0o755 }).then(() => machine.connections.listen()),
    mkdir(paths.runscRoot, { recursive: true, mode: 0o700 }),
    makeDisk(paths, spec.resources.diskBytes),
    ...(spec.volume === undefined ? [] : [attachVolume(spec.volume, paths.volume)]),
    needs.cgroups.create(id, spec.resources),
    needs.network.attach(slot, spec.network).then(({ netnsPath }) =>
      writeFile(
        join(paths.directory, "config.json"),
        JSON.stringify(
          ociSpec({
            paths,
            rootfs: needs.rootfs,
            guestBinary: needs.guestBinary,
            resolvConf: needs.resolvConf,
            hostname: spec.hostname,
            netnsPath,
            cgroupsPath: needs.cgroups.pathOf(id),
            maxProcesses: spec.resources.maxProcesses,
            hasVolume: spec.volume !== undefined,
          }),
        ),
      ),
    ),
  );
  const prepared = performance.now();
  await startUnderShim({
    shim: needs.shimBinary,
    maskProcSysNet: needs.maskProcSysNet,
    log: paths.log,
    ...start,
  });
  const started = performance.now();
  await needs.reached?.(start.timeoutMs === undefined ? "create.started" : "restore.started");
  await guestAnswers(needs.cgroups, machine);
  await machine.configure();
  return {
    prepareMs: prepared - begin,
    runscMs: started - prepared,
    guestMs: performance.now() - started,
  };
}

/** Waits for PID 1 to dial in; fails with `machine_died` once nothing of the machine is left. */
export async function guestAnswers(cgroups: Cgroups, machine: LinuxMachine): Promise<void> {
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
