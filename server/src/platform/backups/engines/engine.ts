/** Interface of a database engine's backups: dump, test restore and restore. */
import type { Guest } from "#machines/host/guest.ts";
import type { Addons } from "#platform/addons/addons.ts";
import type { AddonRow } from "#platform/addons/find.ts";

/** Result of a dump: the stored backup, and a description of the database at the moment of the dump. */
interface Dump<Stored> {
  stored: Stored;
  description: unknown;
}

/** Stores the content of a dump, with backpressure. */
type Sink<Stored> = (content: AsyncIterable<Buffer>) => Promise<Stored>;
/** Yields the bytes of a backup from the store. Throws at their end if the bytes changed in the store. */
export type Source = () => AsyncIterable<Buffer>;

interface RestoreWork {
  addons: Addons;
  addon: AddonRow;
  /** Id of the restore. The data set aside carries it, so that a repeated restore recognises its own data. */
  id: string;
  source: Source;
  /** Content hash from the backup's test restore; null if the contents were not compared. */
  contents: string | null;
  signal: AbortSignal;
}

export interface BackupEngine {
  /** Extension of the download's file name. */
  extension: string;
  /**
   * Streams a snapshot of one moment to `sink`, and returns a description of its content. Writes to the database
   * continue meanwhile.
   */
  dump<Stored>(guest: Guest, addon: AddonRow, sink: Sink<Stored>, signal: AbortSignal): Promise<Dump<Stored>>;
  /** Loads a backup's bytes into a throwaway instance. */
  load(guest: Guest, addon: AddonRow, content: AsyncIterable<Buffer>, signal: AbortSignal): Promise<void>;
  /**
   * Compares the loaded data with the description, and returns the content hash. Rejects with `BackupFailed`, which
   * names the difference.
   */
  compare(guest: Guest, addon: AddonRow, description: unknown, signal: AbortSignal): Promise<string>;
  /**
   * Replaces the add-on's data with the backup. After a failure the old data stays live. A repeated call with the same
   * `id` skips completed steps.
   */
  restore(work: RestoreWork): Promise<void>;
  /**
   * Returns true if the restored data is in place, even if the process that put it there died. If the database does not
   * start with that data and `putsBack` is set, the old data is put back first. The caller may set `putsBack` only if
   * no client can have written since. Rejects while the state is unknown.
   */
  isInPlace(
    work: Pick<RestoreWork, "addons" | "addon" | "id" | "signal"> & { putsBack: boolean },
  ): Promise<boolean>;
  /**
   * Deletes the data that a restore set aside, and leftovers of a failed restore. The old data is deleted only after a
   * completed restore. Safe to repeat.
   */
  cleanUp(work: Pick<RestoreWork, "addons" | "addon" | "id"> & { isCompleted: boolean }): Promise<void>;
}
