/**
 * Ranges of the host's user ids for native machines: user 0 inside is the first of the machine's range, and so on.
 * Concurrent machines have different ranges, because the kernel counts inotify instances, pipe pages, descriptors in
 * flight, keys and processes by user. Files on volumes have the same owners with every range: the mounts are idmapped
 * (../../shim/root.c).
 *
 * A lease is a symbolic link `/run/kontor/users/<range>` to the machine's run directory. Creating the link is atomic,
 * so installations on one host can share the ranges. The link outlives the server, like the machine. Do not assign
 * these ids to other users of the host (subuid(5)).
 */
import { mkdir, readdir, readlink, symlink, unlink } from "node:fs/promises";
import { join } from "node:path";
import { RuntimeError, type MachineId } from "../driver.ts";

/** Number of users in a range: enough for the user `nobody`, 65534. */
export const USERS = 65_536;
/** First user of the range that all machines of older servers share. */
export const SHARED_FIRST_USER = 100_000;
/**
 * First range, at user id 2^24, above the ids of people and of subuid(5). The ranges end at 2^29. Builds have ids from
 * 2^30 on.
 */
const FIRST_RANGE = 2 ** 24 / USERS;
const END_RANGE = 2 ** 29 / USERS;

export class UserRanges {
  readonly #directory: string;
  readonly #instance: number;
  readonly #leases = new Map<MachineId, number>();

  constructor(options: { directory: string; instance: number }) {
    this.#directory = options.directory;
    this.#instance = options.instance;
  }

  /** Adopts the leases of this installation's machines, and ends the leases of machines that are gone. */
  async open(isThere: (id: MachineId) => boolean): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    const own = this.#target("");
    for (const name of await readdir(this.#directory)) {
      const path = join(this.#directory, name);
      const target = await readlink(path).catch(nothing);
      if (target === undefined || !target.startsWith(own)) continue;
      const id = target.slice(own.length);
      if (isThere(id)) this.#leases.set(id, Number(name));
      else await unlink(path);
    }
  }

  /**
   * Leases a range and returns its first user, which is root inside. Fails with `no_capacity` once every
   * range is leased.
   */
  async lease(id: MachineId): Promise<number> {
    const earlier = this.#leases.get(id);
    if (earlier !== undefined) return earlier * USERS;
    const own = new Set(this.#leases.values());
    for (let range = FIRST_RANGE; range < END_RANGE; range += 1) {
      if (own.has(range) || !(await this.#claim(range, id))) continue;
      this.#leases.set(id, range);
      return range * USERS;
    }
    const count = END_RANGE - FIRST_RANGE;
    throw new RuntimeError(
      "no_capacity",
      `all ${count} user ranges of the host are leased; stop some machines`,
    );
  }

  /** Ends the lease of a machine. Call this only when no process of the machine is left. */
  async release(id: MachineId): Promise<void> {
    const range = this.#leases.get(id);
    if (range === undefined) return;
    await unlink(join(this.#directory, String(range))).catch(nothing);
    this.#leases.delete(id);
  }

  async #claim(range: number, id: MachineId): Promise<boolean> {
    try {
      await symlink(this.#target(id), join(this.#directory, String(range)));
      return true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      return false;
    }
  }

  #target(id: string): string {
    return `../${this.#instance}/${id}`;
  }
}

const nothing = () => undefined;
