/**
 * How much of a host an add-on has. A database needs more than the app beside it: half as much again of a core, and a
 * disk of its own. The largest size of each plan is what its add-ons get where nobody says otherwise.
 */
import type { Plan } from "#accounts/roles.ts";
import { planLimit } from "#accounts/errors.ts";

export const sizeNames = ["small", "medium", "large"] as const;
export type AddonSize = (typeof sizeNames)[number];

/** What a database is given. */
export interface Extent {
  vcpus: number;
  memoryBytes: number;
  /** Of its volume, and of the root disk of an instance without one. */
  diskBytes: number;
}

const mib = 1024 ** 2;
const gib = 1024 ** 3;

const extents: Readonly<Record<AddonSize, Extent>> = {
  small: { vcpus: 0.5, memoryBytes: 256 * mib, diskBytes: 1 * gib },
  medium: { vcpus: 1, memoryBytes: 512 * mib, diskBytes: 5 * gib },
  large: { vcpus: 2, memoryBytes: 1024 * mib, diskBytes: 10 * gib },
};

export function extentOf(size: string): Extent {
  return extents[size as AddonSize];
}

/** Starter has no add-ons. */
const largest: Readonly<Record<Plan, AddonSize>> = { starter: "small", pro: "medium", team: "large" };

export function largestSize(plan: Plan): AddonSize {
  return largest[plan];
}

/** Refuses with `plan_limit` a size above the plan's. */
export function requireSize(plan: Plan, size: AddonSize): void {
  const allowed = sizeNames.slice(0, sizeNames.indexOf(largest[plan]) + 1);
  if (allowed.includes(size)) return;
  const needed = (Object.keys(largest) as Plan[]).find((other) => largest[other] === size) ?? null;
  throw planLimit("size", allowed, needed);
}
