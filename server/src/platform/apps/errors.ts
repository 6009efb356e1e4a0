import { defineError } from "#lib/errors.ts";

export const nothingDeployed = defineError(
  "nothing_deployed",
  409,
  () => "Nothing is deployed in this environment yet. Deploy it first.",
);

export const sleepDuringDeployment = defineError(
  "deployment_in_progress",
  409,
  () => "The environment is being deployed; put it to sleep after the deployment.",
);

export const wakeFailed = defineError("wake_failed", 503, (detail: string) => ({
  detail: `The app did not wake: ${detail}`,
  meta: { retry_after: 5 },
}));

/** An app that does not serve. The message is for the owner, and contains the app's last output. */
export class AppUnhealthy extends Error {
  override readonly name = "AppUnhealthy";
}
