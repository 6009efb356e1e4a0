/**
 * One small file per machine, so that a server that starts again knows what it finds. It is written before anything
 * of the machine exists and removed after everything else is gone: a machine without a record is a leftover.
 */
import { open, readFile, readdir, rename } from "node:fs/promises";
import { join } from "node:path";
import type { MachineId, MachineSpec } from "../driver.ts";
import { isMachineId } from "./paths.ts";

export interface MachineRecord {
  version: 1;
  /** Index of the machine's network slot. */
  slot: number;
  /** What the image gives every process; the spec's environment lies on top of it. */
  imageEnv: Record<string, string>;
  spec: MachineSpec;
  /** Which guest program is its PID 1. */
  guestBuild: string;
  /** The runsc that runs it; absent for native machines and in records of older servers. */
  runtimeBuild?: string;
  /** The host's user that is root inside a native machine; absent in records of older servers. */
  firstUser?: number;
  /** Size of a gVisor machine's /dev/shm. Absent, and unlimited, in records of older servers. */
  sharedMemoryBytes?: number;
  /** A checkpoint was begun and the machine not let go since; absent in records of older servers. */
  isHeld?: boolean;
}

/** As it lies on disk: without the environment, which holds its owner's secrets and which PID 1 knows already. */
function toJson(record: MachineRecord): string {
  return JSON.stringify({ ...record, spec: { ...record.spec, env: {} } });
}

/**
 * Written aside and renamed, so that a reader sees the old record or the new one. `durable` waits for the disk: needed
 * for a new machine only, since a host that loses power loses the machine as well.
 */
export async function writeRecord(
  path: string,
  record: MachineRecord,
  options: { durable: boolean },
): Promise<void> {
  const file = await open(`${path}.new`, "w", 0o600);
  try {
    await file.writeFile(toJson(record));
    if (options.durable) await file.sync();
  } finally {
    await file.close();
  }
  await rename(`${path}.new`, path);
}

/** Every id that has a directory, with its record where that can be read. */
export async function readRecords(
  machines: string,
): Promise<{ id: MachineId; record: MachineRecord | undefined }[]> {
  const ids = (await readdir(machines)).filter(isMachineId);
  return Promise.all(
    ids.map(async (id) => ({ id, record: await readRecord(join(machines, id, "machine.json"), id) })),
  );
}

async function readRecord(path: string, id: MachineId): Promise<MachineRecord | undefined> {
  try {
    const record = JSON.parse(await readFile(path, "utf8")) as MachineRecord;
    return record.version === 1 && record.spec.id === id && Number.isInteger(record.slot)
      ? record
      : undefined;
  } catch {
    // Missing or cut off: whatever is there was never acknowledged to anyone.
    return undefined;
  }
}

/** The smallest slot that no machine has. */
export function freeSlot(taken: Iterable<number>): number {
  const used = new Set(taken);
  let slot = 0;
  while (used.has(slot)) slot += 1;
  return slot;
}
