/**
 * Sizes of apps: CPU, memory and the largest memory limit. The sizes match the container sizes of the plans. A new
 * environment gets the plan's largest size.
 */
import type { Plan } from "#accounts/roles.ts";
import { planLimit } from "#accounts/errors.ts";

export const sizeNames = ["small", "medium", "large"] as const;
export type AppSize = (typeof sizeNames)[number];

export const appSizes = {
  small: { cpu: 0.25, memoryMb: 256, burstMb: 256 },
  medium: { cpu: 0.5, memoryMb: 512, burstMb: 1024 },
  large: { cpu: 1, memoryMb: 1024, burstMb: 2048 },
} as const satisfies Record<AppSize, { cpu: number; memoryMb: number; burstMb: number }>;

const largest: Readonly<Record<Plan, AppSize>> = { starter: "small", pro: "medium", team: "large" };

/** Returns the size of new environments on the plan. */
export function largestSize(plan: Plan): AppSize {
  return largest[plan];
}

/** Throws `plan_limit` for a size above the plan's largest. */
export function requireSize(plan: Plan, size: AppSize): void {
  const allowed = sizeNames.slice(0, sizeNames.indexOf(largest[plan]) + 1);
  if (allowed.includes(size)) return;
  const needed = (Object.keys(largest) as Plan[]).find((other) => largest[other] === size) ?? null;
  throw planLimit("size", allowed, needed);
}
