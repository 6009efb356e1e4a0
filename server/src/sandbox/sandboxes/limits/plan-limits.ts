/** Limits of a workspace's plan, for every way to create a sandbox. */
import type { ReachableWorkspace } from "#accounts/actor.ts";
import { accountSuspended, planLimit } from "#accounts/errors.ts";
import { tierLimits } from "#accounts/plans.ts";
import { timeoutTooLong } from "../errors.ts";
import type { Size } from "./sizes.ts";

export const defaultTimeoutSeconds = 600;

export interface RequestedLimits {
  size: Size;
  network: "off" | "restricted" | "open";
  allow_domains?: readonly string[] | null | undefined;
  timeout_seconds: number;
}

export function refuseByPlan(workspace: ReachableWorkspace, wanted: RequestedLimits): void {
  if (workspace.suspended) throw accountSuspended();
  const tier = tierLimits[workspace.sandboxTier];
  if (!tier.sizes.includes(wanted.size)) throw planLimit("size", tier.sizes, "payg");
  if (wanted.allow_domains && wanted.network === "restricted" && workspace.sandboxTier === "free") {
    throw planLimit("allow_domains", false, "payg");
  }
  if (wanted.timeout_seconds > tier.maxTimeoutSeconds) {
    throw timeoutTooLong(tier.maxTimeoutSeconds, workspace.sandboxTier);
  }
}
