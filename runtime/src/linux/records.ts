/**
 * A small file per machine, from which a restarted server reads the machine's state. The file is written before any
 * part of the machine exists, and deleted after every other part. So a machine without a record is a leftover.
 */
import { open, readFile, readdir, rename } from "node:fs/promises";
import { join } from "node:path";
import type { MachineId, MachineSpec } from "../driver.ts";
import { isMachineId } from "./paths.ts";

export interface MachineRecord {
  version: 1;
  /** Index of the machine's network slot. */
  slot: number;
  /** Environment from the image; the spec's environment overrides it. */
  imageEnv: Record<string, string>;
  spec: MachineSpec;
  /** Build of the guest program that is the machine's PID 1. */
  guestBuild: string;
  /** Version of the runsc that runs the machine. Absent for native machines and in records of older servers. */
  runtimeBuild?: string;
  /** User of the host that is root inside a native machine. Absent in records of older servers. */
  firstUser?: number;
  /** Size of a gVisor machine's /dev/shm. Absent in records of older servers, which had no limit. */
  sharedMemoryBytes?: number;
  /** True from the start of a checkpoint until the machine is resumed. Absent in records of older servers. */
  isHeld?: boolean;
}

/**
 * Returns the content of the record's file. The record leaves out the environment, which contains secrets of its owner
 * and which PID 1 has already.
 */
function toJson(record: MachineRecord): string {
  return JSON.stringify({ ...record, spec: { ...record.spec, env: {} } });
}

/**
 * Writes a temporary file and renames it, so that a reader sees the old record or the new one. `durable` waits for the
 * disk. Only the record of a new machine must be durable, because a host that loses power loses its machines too.
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

/** Returns every id with a directory, and the record of the id if it is readable. */
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
    // The record is missing or truncated: the create was never acknowledged to a caller.
    return undefined;
  }
}

/** Returns the smallest slot that no machine uses. */
export function freeSlot(taken: Iterable<number>): number {
  const used = new Set(taken);
  let slot = 0;
  while (used.has(slot)) slot += 1;
  return slot;
}
