/**
 * What there is to know of one kind of database: what it runs, how it is put in order and asked, what its address looks
 * like. The programs are in the kind's image (`templates/addons/`); settings are written anew before each start, so
 * that they are this server's word and not what an earlier one thought.
 */
import type { Guest } from "#machines/host/guest.ts";
import type { Extent } from "../sizes.ts";

export type Kind = "postgres" | "redis";

/** One instance, as its engine sees it. */
export interface Instance {
  extent: Extent;
  username: string;
  database: string | null;
  password: string;
  options: Record<string, unknown>;
  /** Its files were made once, and have to be there. */
  isMade: boolean;
  /** Nothing of it outlives its machine: it need not survive anything. */
  isThrowaway?: true;
}

/** `full`: writes may fail, or are refused already. */
export interface Room {
  isFull: boolean;
  freeBytes: number;
}

export interface Engine {
  kind: Kind;
  /** The newest is what an add-on gets where nobody says otherwise. */
  version: string;
  /** Name of an inner image. */
  image: string;
  port: number;
  /** What the first one of a project is called in a process' environment. */
  variable: string;
  username: string;
  database: string | null;
  /** Everything before its process starts, what an earlier one left included. Fails with an `EngineFailure`. */
  prepare(guest: Guest, instance: Instance): Promise<Room>;
  command: { argv: string[]; user: string; cwd: string };
  /** Asks the process to end soon and in order. */
  stopSignal: number;
  /** Whether it answers a query, and what its disk says. Fails where it does not. */
  health(guest: Guest, instance: Instance): Promise<Room>;
  /** Its disk has become full, or is so no more: what it does about it while it runs. */
  heed(guest: Guest, room: Room): Promise<void>;
  /** Its user and database are there when this returns, with this password. */
  admit(guest: Guest, instance: Instance): Promise<void>;
  /** `scheme://user:password@host:port/database`. */
  url(place: { host: string; port: number; isTls: boolean }, instance: Omit<Instance, "extent">): string;
}

/** What is held back on a disk of that size, to be given up when all else is used. */
export function heldBackBytes({ diskBytes }: Extent): number {
  return Math.min(diskBytes / 16, 128 * 1024 ** 2);
}

/** What `room` prints. */
export function readRoom(output: string): Room {
  const [word, free] = (output.trim().split("\n").at(-1) ?? "").split(" ");
  return { isFull: word === "full", freeBytes: Number(free) || 0 };
}
