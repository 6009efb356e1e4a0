import { defineError } from "#lib/errors.ts";

export const signatureInvalid = defineError(
  "signature_invalid",
  403,
  () => "The URL was not signed for this method, path and sandbox, or was changed. Create a new one.",
);

export const urlExpired = defineError(
  "url_expired",
  403,
  () => "The URL has expired. Create a new one; expires_in may be up to 3600 seconds.",
);

export const tooManyWatches = defineError(
  "too_many_watches",
  409,
  () => "16 watches of this sandbox are open already; end one of them, or watch a directory above.",
);

export const rangeNotSatisfiable = defineError("range_not_satisfiable", 416, (sizeBytes: number) => ({
  detail: `The file ends before the requested range: it has ${sizeBytes} bytes.`,
  meta: { size: sizeBytes },
}));
