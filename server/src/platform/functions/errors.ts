import { defineError } from "#lib/errors.ts";

export const functionNotFound = defineError("function_not_found", 404, () => "No such function.");

export const functionDeployed = defineError(
  "function_deployed",
  409,
  () =>
    "name: the name is part of the address and cannot change after the first deploy; create another function.",
);

export const noApiKey = defineError(
  "no_api_key",
  409,
  () => 'The function has no key. Set auth_mode to "api_key" first; the response contains the new key.',
);

export const deployInProgress = defineError(
  "deployment_in_progress",
  409,
  (other: { id: string; number: number }) => ({
    detail: `Version ${other.number} is being deployed: wait for its end, and deploy again.`,
    meta: { version_id: other.id },
  }),
);

export const bodyTooLarge = defineError("payload_too_large", 413, (limitBytes: number) => ({
  detail: `body: a request to a function has ${limitBytes / 1024 ** 2} MiB at most; send a smaller one.`,
  meta: { limit_bytes: limitBytes },
}));

export const versionNotFound = defineError(
  "version_not_found",
  404,
  () => "No such version of the function. The newest 20 are kept.",
);

export const versionNotRollbackable = defineError("not_rollbackable", 409, (state: string) =>
  state === "building"
    ? "The version is still being built: wait for its end."
    : "The version never went live: roll back to one whose status is superseded.",
);

export const imagePruned = defineError(
  "image_pruned",
  409,
  () => "The version's image was deleted. Set allow_rebuild=true to build its code again.",
);
