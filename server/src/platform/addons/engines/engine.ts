/**
 * Interface of a database engine: how to prepare, start, check and address a kind of database. The programs are in the
 * kind's image (`templates/addons/`). Settings are written before each start, so they are always those of this server's
 * version.
 */
import type { Guest } from "#machines/host/guest.ts";
import type { Extent } from "../sizes.ts";

export type Kind = "postgres" | "redis";

/** A database instance, as the engine sees it. */
export interface Instance {
  extent: Extent;
  username: string;
  database: string | null;
  password: string;
  options: Record<string, unknown>;
  /** True if earlier starts created the database files, so that missing files are an error. */
  isMade: boolean;
  /** True for an instance whose data need not survive a crash. */
  isThrowaway?: true;
}

/** Free space of the disk. If `isFull`, writes may fail or are already refused. */
export interface Room {
  isFull: boolean;
  freeBytes: number;
}

export interface Engine {
  kind: Kind;
  /** Version of new add-ons. */
  version: string;
  /** Name of the engine's image in `templates/addons/`. */
  image: string;
  port: number;
  /** Environment variable with the URL of the project's oldest add-on of this kind. */
  variable: string;
  username: string;
  database: string | null;
  /**
   * Prepares files and settings before the process starts, and cleans up after an earlier process. Returns the free
   * disk. Rejects with an `EngineFailure`.
   */
  prepare(guest: Guest, instance: Instance): Promise<Room>;
  command: { argv: string[]; user: string; cwd: string };
  /** Number of the signal for a graceful stop. */
  stopSignal: number;
  /**
   * Checks with a query that the database responds, and returns the free disk. Rejects if the database does not
   * respond.
   */
  health(guest: Guest, instance: Instance): Promise<Room>;
  /** Adapts the running database to a disk that became full or has space again. */
  onDiskChange(guest: Guest, room: Room): Promise<void>;
  /** Creates the user and the database if they are missing, and sets the password. */
  ensureAccess(guest: Guest, instance: Instance): Promise<void>;
  /** Returns the connection URL: `scheme://user:password@host:port/database`. */
  url(place: { host: string; port: number; isTls: boolean }, instance: Omit<Instance, "extent">): string;
}

/** Returns the reserve on a disk of this size, in bytes. The reserve is released when the rest of the disk is used. */
export function heldBackBytes({ diskBytes }: Extent): number {
  return Math.min(diskBytes / 16, 128 * 1024 ** 2);
}

/** Parses the output of the program `room`. */
export function readRoom(output: string): Room {
  const [word, free] = (output.trim().split("\n").at(-1) ?? "").split(" ");
  return { isFull: word === "full", freeBytes: Number(free) || 0 };
}
