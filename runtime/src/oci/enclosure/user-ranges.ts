/**
 * Ranges of the host's user ids for enclosures. Concurrent enclosures have different ranges: the kernel counts
 * processes, inotify instances and keys by user, and a process may signal others of its user. Files on disk have the
 * same owners with every range, so a range is leased for one run.
 */
import { RuntimeError } from "../../driver.ts";

/** Number of users in a range. */
export const USERS = 65_536;
/** First user id of the ranges. Native machines and the host's own accounts have lower ids. */
const FIRST = 2 ** 30;
const RANGES = 64;

export interface UserRange {
  /** User of the host that is root in the enclosure. */
  first: number;
  release(): void;
}

export class UserRanges {
  readonly #first: number;
  readonly #leased = new Set<number>();

  /** Ranges of one installation. `instance`: number of the installation on its host, 0 to 63. */
  constructor(instance: number) {
    this.#first = FIRST + instance * RANGES * USERS;
  }

  /** Leases an unused range. Fails with `no_capacity` while all ranges are leased. */
  lease(): UserRange {
    for (let range = 0; range < RANGES; range += 1) {
      if (this.#leased.has(range)) continue;
      this.#leased.add(range);
      return { first: this.#first + range * USERS, release: () => void this.#leased.delete(range) };
    }
    throw new RuntimeError("no_capacity", `${RANGES} builds run at the same time; start fewer`);
  }
}
