/**
 * Whether one more machine fits. What counts is what the rows promise, not what machines use at the moment: a
 * decision on stale measurements lets a herd through. Memory and cores may be promised more than once by a factor
 * of the configuration, because machines rarely use what they may.
 */
export interface Capacity {
  memoryBytes: number;
  vcpus: number;
  machines: number;
  /** Of the disk that machines write to; what is free is measured, since disks are sparse. */
  diskReserveBytes: number;
}

export interface Committed {
  memoryBytes: number;
  vcpus: number;
  machines: number;
}

/** Undefined when it fits, else what is short, for a person. */
export function refusal(
  capacity: Omit<Capacity, "diskReserveBytes">,
  committed: Committed,
  wanted: { memoryBytes: number; vcpus: number },
): string | undefined {
  if (committed.machines + 1 > capacity.machines) return `${capacity.machines} machines run already`;
  if (committed.memoryBytes + wanted.memoryBytes > capacity.memoryBytes) {
    return `memory: ${mib(capacity.memoryBytes - committed.memoryBytes)} of ${mib(capacity.memoryBytes)} MiB left, ${mib(wanted.memoryBytes)} needed`;
  }
  if (committed.vcpus + wanted.vcpus > capacity.vcpus) {
    return `CPU: ${capacity.vcpus - committed.vcpus} of ${capacity.vcpus} cores left, ${wanted.vcpus} needed`;
  }
  return undefined;
}

/** The same for the disk: every machine and every volume on it writes when it wants to. */
export function diskRefusal(
  capacity: Pick<Capacity, "diskReserveBytes">,
  freeBytes: number,
): string | undefined {
  if (freeBytes >= capacity.diskReserveBytes) return undefined;
  return `disk: ${mib(freeBytes)} MiB left, ${mib(capacity.diskReserveBytes)} are kept free`;
}

function mib(bytes: number): number {
  return Math.max(0, Math.floor(bytes / 1024 ** 2));
}
