/** Limits of a function by plan. */
import type { Plan } from "#accounts/roles.ts";
import { planLimits, requireBelow } from "#accounts/plans.ts";

export const minMemoryMb = 128;
export const maxMemoryMb = Math.max(...Object.values(planLimits).map((limits) => limits.functionMemoryMb));

/** Throws `plan_limit` for more memory than the plan allows. */
export function requireMemory(plan: Plan, memoryMb: number): void {
  requireBelow(plan, "functionMemoryMb", memoryMb - 1);
}
