/**
 * Interface of a database engine: how to prepare, start, check and address one kind of database. The programs are in
 * the kind's image (`templates/addons/`). Settings are written before each start, so they are always those of this
 * server's version.
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
  /** True if the database files were created before, so they must exist. */
  isMade: boolean;
  /** The instance is not kept, so it need not survive a crash. */
  isThrowaway?: true;
}

/** `full`: writes may fail, or are refused already. */
export interface Room {
  isFull: boolean;
  freeBytes: number;
}

export interface Engine {
  kind: Kind;
  /** Default version of new add-ons. */
  version: string;
  /** Name of an inner image. */
  image: string;
  port: number;
  /** Environment variable of the project's first add-on of this kind. */
  variable: string;
  username: string;
  database: string | null;
  /**
   * Prepares everything before the process starts, and cleans up after an earlier one. Fails with an `EngineFailure`.
   */
  prepare(guest: Guest, instance: Instance): Promise<Room>;
  command: { argv: string[]; user: string; cwd: string };
  /** Signal for a graceful stop. */
  stopSignal: number;
  /** Checks with a query that the database responds, and reads the free disk. Fails if it does not respond. */
  health(guest: Guest, instance: Instance): Promise<Room>;
  /** Reacts to a disk that became full or free while the database runs. */
  onDiskChange(guest: Guest, room: Room): Promise<void>;
  /** Ensures that the user and the database exist, with this password. */
  ensureAccess(guest: Guest, instance: Instance): Promise<void>;
  /** `scheme://user:password@host:port/database`. */
  url(place: { host: string; port: number; isTls: boolean }, instance: Omit<Instance, "extent">): string;
}

/** Bytes reserved on a disk of this size, and released when the rest is used. */
export function heldBackBytes({ diskBytes }: Extent): number {
  return Math.min(diskBytes / 16, 128 * 1024 ** 2);
}

/** Parses the output of `room`. */
export function readRoom(output: string): Room {
  const [word, free] = (output.trim().split("\n").at(-1) ?? "").split(" ");
  return { isFull: word === "full", freeBytes: Number(free) || 0 };
}
