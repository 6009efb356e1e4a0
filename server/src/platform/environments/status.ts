/** What an environment is, as a visitor would find it: derived from what is served and what was tried last, never stored. */
import type { DeploymentStatus } from "../deployments/tables.ts";

export const environmentStatuses = ["created", "building", "live", "failed", "asleep"] as const;
export type EnvironmentStatus = (typeof environmentStatuses)[number];

/**
 * A failed or running deployment changes nothing for visitors while an earlier one is served: the environment is
 * `live` and its last deployment says the rest.
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
