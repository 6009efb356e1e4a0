/** What there is to know of saving one kind of database: how its bytes are made, tried, and put back. */
import type { Guest } from "#machines/host/guest.ts";
import type { Addons } from "#platform/addons/addons.ts";
import type { AddonRow } from "#platform/addons/find.ts";

/** What was put away, and what the database held at that moment. */
export interface Dumped<Stored> {
  stored: Stored;
  held: unknown;
}

/** A place bytes are put, as fast as it takes them. */
export type Sink<Stored> = (content: AsyncIterable<Buffer>) => Promise<Stored>;
/** The bytes of a backup, as stored; fails at their end where they are not those that were put there. */
export type Source = () => AsyncIterable<Buffer>;

export interface RestoreWork {
  addons: Addons;
  addon: AddonRow;
  /** Names what is put aside, so that one that is begun again knows its own. */
  id: string;
  source: Source;
  /** As the backup's own trial found it; null where it was not compared. */
  contents: string | null;
  signal: AbortSignal;
}

export interface BackupEngine {
  /** Of a file's name. */
  extension: string;
  /** Streams the database as of one moment, and says what it held then. The database is written to meanwhile. */
  dump<Stored>(
    guest: Guest,
    addon: AddonRow,
    sink: Sink<Stored>,
    signal: AbortSignal,
  ): Promise<Dumped<Stored>>;
  /** Puts the bytes, as they come, into an instance that is thrown away. */
  load(guest: Guest, addon: AddonRow, content: AsyncIterable<Buffer>, signal: AbortSignal): Promise<void>;
  /**
   * Compares what was loaded there with what was held. Answers the hash of its contents. Fails with `BackupFailed`,
   * which says what differs.
   */
  compare(guest: Guest, addon: AddonRow, held: unknown, signal: AbortSignal): Promise<string>;
  /**
   * Puts the bytes in the place of what the add-on holds. Where it fails the old data serves on; what it did is not
   * done again where it is begun again with the same `id`.
   */
  restore(work: RestoreWork): Promise<void>;
  /**
   * Whether what was restored is in its place, whatever became of who put it there. Where the database does not come up
   * with it the old data is put back first, if `putsBack`: only where nobody can have written to it since. Throws where
   * it cannot be found out now.
   */
  isInPlace(
    work: Pick<RestoreWork, "addons" | "addon" | "id" | "signal"> & { putsBack: boolean },
  ): Promise<boolean>;
  /**
   * What a restore kept in case it fails goes, and what one that failed had begun; once more does nothing. Old data goes
   * only where it was completed.
   */
  cleanUp(work: Pick<RestoreWork, "addons" | "addon" | "id"> & { isCompleted: boolean }): Promise<void>;
}
