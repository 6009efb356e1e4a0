import { defineError } from "#lib/errors.ts";

export const credentialNotFound = defineError(
  "model_credential_not_found",
  404,
  () => "No such model credential.",
);
export const credentialLimitReached = defineError(
  "model_credential_limit_reached",
  409,
  (allowed: number) => ({
    detail: `An account has at most ${allowed} model credentials; delete one first.`,
    meta: { limit: "model_credentials", allowed },
  }),
);
export const fullAccessRequired = defineError(
  "full_access_required",
  403,
  () => "Only a signed-in person or a full-access token adds, changes or deletes model keys.",
);
