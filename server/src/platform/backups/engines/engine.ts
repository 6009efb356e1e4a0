/** Interface of a database engine's backups: dump, test restore and restore. */
import type { Guest } from "#machines/host/guest.ts";
import type { Addons } from "#platform/addons/addons.ts";
import type { AddonRow } from "#platform/addons/find.ts";

/** The stored backup, and a description of the database at the moment of the dump. */
interface Dump<Stored> {
  stored: Stored;
  description: unknown;
}

/** Stores the content, with backpressure. */
type Sink<Stored> = (content: AsyncIterable<Buffer>) => Promise<Stored>;
/** The bytes of a backup from the store; fails at their end if they changed in the store. */
export type Source = () => AsyncIterable<Buffer>;

interface RestoreWork {
  addons: Addons;
  addon: AddonRow;
  /** Names the data set aside, so that a repeated restore recognises its own. */
  id: string;
  source: Source;
  /** Content hash from the backup's test restore; null if it was not compared. */
  contents: string | null;
  signal: AbortSignal;
}

export interface BackupEngine {
  /** File name extension. */
  extension: string;
  /** Streams a snapshot of one moment, and returns a description of its content. Writes continue meanwhile. */
  dump<Stored>(guest: Guest, addon: AddonRow, sink: Sink<Stored>, signal: AbortSignal): Promise<Dump<Stored>>;
  /** Streams the bytes into a throwaway instance. */
  load(guest: Guest, addon: AddonRow, content: AsyncIterable<Buffer>, signal: AbortSignal): Promise<void>;
  /**
   * Compares the loaded data with the description. Returns the content hash. Fails with `BackupFailed`, which names the
   * difference.
   */
  compare(guest: Guest, addon: AddonRow, description: unknown, signal: AbortSignal): Promise<string>;
  /**
   * Replaces the add-on's data with the backup. On failure the old data stays live. A repeated call with the same `id`
   * does not repeat completed steps.
   */
  restore(work: RestoreWork): Promise<void>;
  /**
   * True if the restored data is in place, even if the process that put it there died. If the database does not start
   * with it and `putsBack` is set, puts the old data back first. `putsBack` requires that no client can have written
   * since. Throws if the state is unknown for now.
   */
  isInPlace(
    work: Pick<RestoreWork, "addons" | "addon" | "id" | "signal"> & { putsBack: boolean },
  ): Promise<boolean>;
  /**
   * Deletes the data that a restore set aside, and leftovers of a failed one. Safe to repeat. Deletes old data only of
   * a completed restore.
   */
  cleanUp(work: Pick<RestoreWork, "addons" | "addon" | "id"> & { isCompleted: boolean }): Promise<void>;
}
