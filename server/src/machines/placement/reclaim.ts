/**
 * Frees memory for a new machine by moving idle machines from memory to disk. Admission reads rows in the caller's
 * transaction and cannot wait there. A refusal therefore ends the transaction, an owner frees memory, and the
 * transaction runs again.
 */
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import { DiskShort, noCapacity } from "../errors.ts";

/** Maximum of attempts. Machines move to disk one at a time, and a large new machine may need the memory of several. */
const mostTries = 16;

/** `work` is a transaction that places a machine; it is repeated as long as freeing memory can help. */
export async function withReclaim<T>(
  { machines }: Pick<App, "machines">,
  work: () => Promise<T>,
): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await work();
    } catch (error) {
      // Freeing memory writes to the disk, so it cannot help when the disk is full.
      const isFull =
        error instanceof DomainError && error.code === noCapacity.code && !(error.cause instanceof DiskShort);
      if (!isFull || tries === mostTries || !(await machines.reclaimMemory())) throw error;
    }
  }
}
