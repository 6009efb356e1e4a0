/**
 * Computes the status of an environment as a visitor experiences it, from the live and the last deployment. The status
 * is not stored.
 */
import type { DeploymentStatus } from "../deployments/tables.ts";

export const environmentStatuses = ["created", "building", "live", "failed", "asleep"] as const;
export type EnvironmentStatus = (typeof environmentStatuses)[number];

/**
 * Returns the status. While a deployment is live, another one that failed or runs changes nothing for visitors. The
 * environment is then `live`, and only its last deployment shows the failure.
 */
export function statusOf(environment: {
  live_deployment_id: string | null;
  asleep_since: Date | null;
  last: { status: DeploymentStatus } | null;
}): EnvironmentStatus {
  if (environment.live_deployment_id !== null) return environment.asleep_since === null ? "live" : "asleep";
  switch (environment.last?.status) {
    case "queued":
    case "building":
    case "deploying":
      return "building";
    case "failed":
      return "failed";
    case "cancelled":
    case "superseded":
    case "live":
    case undefined:
      return "created";
  }
}
