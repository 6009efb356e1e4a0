/**
 * Decides whether one more machine fits. The decision counts the limits in the rows and not the current use, because
 * stale measurements would admit a herd of machines at once. The configuration may overcommit memory and cores by a
 * factor, because machines rarely use their limits.
 */
export interface Capacity {
  memoryBytes: number;
  vcpus: number;
  machines: number;
  /** Reserve of the disk that machines write to. Free bytes are measured, because disk images are sparse. */
  diskReserveBytes: number;
}

export interface CommittedResources {
  memoryBytes: number;
  vcpus: number;
  machines: number;
}

/** Returns the reason why a machine does not fit, which names the short resource. Undefined if it fits. */
export function refusal(
  capacity: Omit<Capacity, "diskReserveBytes">,
  committed: CommittedResources,
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

/**
 * Returns a text that names the disk if too few bytes are free, because every machine and every volume may write at any
 * time. Undefined otherwise.
 */
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
