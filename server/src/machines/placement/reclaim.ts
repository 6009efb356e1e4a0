/**
 * Room that owners make for others: what rests in memory can rest on disk as well. Admission looks at rows within the
 * caller's own transaction and cannot wait there; so a refusal ends that, somebody gives room, and it is begun anew.
 */
import type { App } from "#app.ts";
import { DomainError } from "#lib/errors.ts";
import { DiskShort, noCapacity } from "../errors.ts";

/** Of machines that go one at a time, until the new one fits: it may be as large as several of them. */
const mostTries = 16;

/** `work` is a transaction that places a machine; it is begun anew as long as a refusal can be helped. */
export async function withRoom<T>({ machines }: Pick<App, "machines">, work: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await work();
    } catch (error) {
      // Room is made by writing to the disk: where that is full, it would only be fuller.
      const isFull =
        error instanceof DomainError && error.code === noCapacity.code && !(error.cause instanceof DiskShort);
      if (!isFull || tries === mostTries || !(await machines.giveRoom())) throw error;
    }
  }
}
