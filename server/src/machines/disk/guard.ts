/**
 * Keeps machines from filling the disk. Disks and volumes are sparse: together they may exceed the host's disk, and the
 * database lies on the same disk. Admission checks when a machine starts; the guard checks every few seconds after
 * that.
 *
 * The guard freezes the machine that wrote most since the last check when, at that pace, the free bytes would fall
 * below the reserve within `aheadSeconds`. The guard freezes one machine per check, and below half of the reserve as
 * many as necessary. A machine that cannot be frozen is ended. A frozen machine keeps its processes and files. Frozen
 * machines are thawed once a quarter more than the reserve is free: one per check, the longest frozen first. The guard
 * compares paces and not sizes: a machine with a full disk that writes little is left alone, even if other programs
 * fill the host's disk.
 */
import type { Logger } from "pino";
import type { DiskUse } from "@kontor/runtime/driver.ts";
import type { Db } from "#schema.ts";
import type { Host } from "../host/host.ts";
import { orderFor } from "../placement/order.ts";
import { findMachine, type MachineRow } from "../store.ts";

export const lookEveryMs = 2_000;
/** Time to look ahead: a fast disk writes gigabytes between two checks. */
const aheadSeconds = 10;
/** A machine is harmless if the free bytes last longer than this at its pace. */
const horizonSeconds = 600;
const releaseAt = 1.25;
/** Minimum time between two announcements for a machine that is frozen again and again. */
const announceEveryMs = 10 * 60_000;

export interface DiskHold {
  machine: MachineRow;
  freeBytes: number;
  writtenBytes: number;
  isEnded: boolean;
}

export class DiskGuard {
  readonly #host: Host;
  readonly #db: Db;
  readonly #log: Logger;
  readonly #reserveBytes: number;
  readonly #isSuspended: (machine: string) => boolean;
  readonly #announce: (hold: DiskHold) => Promise<void>;
  /** Frozen machines, the longest frozen first. */
  readonly #held = new Set<string>();
  readonly #announced = new Map<string, number>();
  #last: (DiskUse & { at: number }) | undefined;

  constructor(deps: {
    host: Host;
    db: Db;
    log: Logger;
    /** Bytes of the disk that must stay free. Zero turns the guard off. */
    reserveBytes: number;
    /** True if a machine stays frozen because its workspace is suspended. */
    isSuspended?: (machine: string) => boolean;
    /** Called for a machine that was frozen or ended. */
    announce: (hold: DiskHold) => Promise<void>;
  }) {
    this.#host = deps.host;
    this.#db = deps.db;
    this.#log = deps.log;
    this.#reserveBytes = deps.reserveBytes;
    this.#isSuspended = deps.isSuspended ?? (() => false);
    this.#announce = deps.announce;
  }

  /** Checks the disk once. `atMs`: time of a monotonic clock. */
  async look(atMs = performance.now()): Promise<void> {
    if (this.#reserveBytes === 0) return;
    const use = await this.#host.diskUse();
    const last = this.#last;
    this.#last = { ...use, at: atMs };
    if (last === undefined || atMs <= last.at) return;
    const seconds = (atMs - last.at) / 1000;
    const verdict = writersToHold(growth(last, use), { ...use, seconds, reserveBytes: this.#reserveBytes });
    for (const [id, writtenBytes] of verdict)
      await this.#hold(id, { freeBytes: use.freeBytes, writtenBytes });
    if (verdict.length === 0 && use.freeBytes >= this.#reserveBytes * releaseAt) await this.#releaseOne();
  }

  async #hold(id: string, facts: Pick<DiskHold, "freeBytes" | "writtenBytes">): Promise<void> {
    const machine = await findMachine(this.#db, id);
    if (machine === undefined || machine.desired === "removed" || this.#host.isStarting(id)) return;
    const order = { ...orderFor(machine), hostEpoch: this.#host.epoch };
    let isEnded = false;
    try {
      await this.#host.freeze(order);
      this.#held.add(id);
    } catch (error) {
      this.#log.warn(
        { machine: id, err: error },
        "a machine that fills the disk cannot be frozen; ending it",
      );
      await this.#host.remove(order);
      isEnded = true;
    }
    const fields = { machine: id, owner: machine.owner_id, ...facts };
    this.#log.warn(
      fields,
      isEnded ? "ended a machine that fills the disk" : "froze a machine that fills the disk",
    );
    const now = performance.now();
    if (!isEnded && now - (this.#announced.get(id) ?? -Infinity) < announceEveryMs) return;
    this.#announced.set(id, now);
    await this.#announce({ machine, ...facts, isEnded });
  }

  async #releaseOne(): Promise<void> {
    const [id] = this.#held;
    if (id === undefined) {
      this.#announced.clear();
      return;
    }
    this.#held.delete(id);
    const machine = await findMachine(this.#db, id);
    // The owner may have frozen or removed the machine meanwhile.
    if (machine?.desired !== "running" || this.#isSuspended(id)) return;
    try {
      await this.#host.thaw({ ...orderFor(machine), hostEpoch: this.#host.epoch });
    } catch (error) {
      // The machine moves behind the other frozen ones, and a later check retries.
      this.#held.add(id);
      throw error;
    }
    this.#log.info({ machine: id }, "the disk has room again; thawed the machine");
  }
}

/**
 * Returns the bytes that each machine wrote since the last check, the largest number first. A new machine starts at
 * zero.
 */
function growth(before: DiskUse, now: DiskUse): [string, number][] {
  return [...now.machines]
    .map(([id, bytes]): [string, number] => [id, bytes - (before.machines.get(id) ?? bytes)])
    .filter(([, bytes]) => bytes > 0)
    .toSorted(([, a], [, b]) => b - a);
}

export function writersToHold(
  writers: [string, number][],
  { freeBytes, seconds, reserveBytes }: { freeBytes: number; seconds: number; reserveBytes: number },
): [string, number][] {
  let pace = writers.reduce((sum, [, bytes]) => sum + bytes, 0) / seconds;
  const held: [string, number][] = [];
  for (const writer of writers) {
    const isShort = freeBytes - pace * aheadSeconds < reserveBytes;
    if (!isShort || pace * horizonSeconds < freeBytes) break;
    if (held.length > 0 && freeBytes >= reserveBytes / 2) break;
    held.push(writer);
    pace -= writer[1] / seconds;
  }
  return held;
}
