import { defineError } from "#lib/errors.ts";

export const nothingDeployed = defineError(
  "nothing_deployed",
  409,
  () => "Nothing is deployed in this environment yet. Deploy it first.",
);

export const sleepDuringDeployment = defineError(
  "deployment_in_progress",
  409,
  () => "The environment is being deployed; it can be put to sleep once that is over.",
);

export const wakeFailed = defineError("wake_failed", 503, (detail: string) => ({
  detail: `The app did not wake: ${detail}`,
  meta: { retry_after: 5 },
}));

/** Why an app is not served; the message is for whoever deploys it, with what the app said last. */
export class AppUnhealthy extends Error {
  override readonly name = "AppUnhealthy";
}
