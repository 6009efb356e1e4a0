/**
 * Sizes of add-ons. A database gets half as much CPU again as an app of the same size, and its own disk. The default is
 * the largest size of the plan.
 */
import type { Plan } from "#accounts/roles.ts";
import { planLimit } from "#accounts/errors.ts";

export const sizeNames = ["small", "medium", "large"] as const;
export type AddonSize = (typeof sizeNames)[number];

/** Resources of a database. */
export interface Extent {
  vcpus: number;
  memoryBytes: number;
  /** Bytes of the volume, or of the root disk of an instance without a volume. */
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

/** Largest size of each plan. Plan starter includes no add-ons. */
const largest: Readonly<Record<Plan, AddonSize>> = { starter: "small", pro: "medium", team: "large" };

export function largestSize(plan: Plan): AddonSize {
  return largest[plan];
}

/** Throws `plan_limit` for a size above the plan's largest. */
export function requireSize(plan: Plan, size: AddonSize): void {
  const allowed = sizeNames.slice(0, sizeNames.indexOf(largest[plan]) + 1);
  if (allowed.includes(size)) return;
  const needed = (Object.keys(largest) as Plan[]).find((other) => largest[other] === size) ?? null;
  throw planLimit("size", allowed, needed);
}
