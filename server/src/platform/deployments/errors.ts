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
      ? "The deployment is being switched to: it can be rolled back once it is live."
      : `The deployment is over: it is ${status}.`,
);

export const notRollbackable = defineError(
  "not_rollbackable",
  409,
  () => "The deployment never went live: there is nothing to go back to.",
);

export const imagePruned = defineError(
  "image_pruned",
  409,
  () =>
    "The deployment's image is not kept any more. With allow_rebuild=true its commit is built again, or its image is pulled again by digest.",
);
