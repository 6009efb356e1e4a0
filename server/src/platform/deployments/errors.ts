import { defineError } from "#lib/errors.ts";
import type { DeploymentStatus } from "./tables.ts";

export const deploymentNotFound = defineError("deployment_not_found", 404, () => "No such deployment.");

export const deploymentInProgress = defineError(
  "deployment_in_progress",
  409,
  (other: { id: string; number: number; status: DeploymentStatus }) => ({
    detail: `Deployment ${other.number} of this environment is ${other.status}: wait for its end, or cancel it.`,
    meta: { deployment_id: other.id },
  }),
);

export const deploymentNotCancellable = defineError(
  "deployment_not_cancellable",
  409,
  (status: DeploymentStatus) =>
    status === "deploying"
      ? "The deployment is about to go live and cannot be cancelled; roll it back once it is live."
      : `Only a queued or running deployment can be cancelled; this deployment is ${status}.`,
);

export const notRollbackable = defineError(
  "not_rollbackable",
  409,
  () => "The deployment never went live; roll back to a deployment that did.",
);

export const imagePruned = defineError(
  "image_pruned",
  409,
  () =>
    "The deployment's image was deleted. Set allow_rebuild=true to build its commit again, or to pull its image again by digest.",
);
