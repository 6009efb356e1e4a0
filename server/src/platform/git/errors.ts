import { defineError } from "#lib/errors.ts";

export const repositoryEmpty = defineError(
  "repository_empty",
  409,
  () => "The repository holds no commit yet: push one first.",
);

export const branchNotFound = defineError("branch_not_found", 409, (branch: string) => ({
  detail: `The repository has no branch ${branch}.`,
  meta: { branch },
}));

export const commitNotFound = defineError("commit_not_found", 409, (sha: string) => ({
  detail: `The repository has no commit ${sha}.`,
  meta: { sha },
}));

export const tagNotFound = defineError("tag_not_found", 409, (tag: string) => ({
  detail: `The repository has no tag ${tag} that names a commit.`,
  meta: { tag },
}));

/** Error for a repository above a limit. `unit` names the limit: files or megabytes. */
export const repositoryTooLarge = defineError(
  "repository_too_large",
  409,
  (unit: "files" | "megabytes", limit: number) => ({
    detail: `The repository is larger than the limit of ${limit} ${unit} for a checkout.`,
    meta: { limit },
  }),
);

/** Error for an address that the server refuses to fetch from. */
export const repositoryRefused = defineError(
  "repository_refused",
  409,
  (why: string) => `The repository can't be fetched: ${why}`,
);

/**
 * Error for a remote host that does not respond, or serves no repository. `why` may be shown to the project's owner.
 */
export const repositoryUnavailable = defineError(
  "repository_unavailable",
  409,
  (why: string) => `The repository can't be fetched: ${why}`,
);

export const hostKeyChanged = defineError(
  "host_key_changed",
  409,
  (host: string) =>
    `The ssh host key of ${host} differs from the trusted key; the connection may be intercepted. If the forge changed its key, set the project's repo_url again to trust the new key.`,
);

// ---- hosting: shown by the git client

export const tokenRequired = defineError(
  "unauthenticated",
  401,
  () => "Use any user name, and an API token as the password.",
);

export const tooManyWaiting = defineError("unavailable", 503, () => ({
  detail: "Too many of your fetches and pushes are waiting; try again when one of them has finished.",
  meta: { retry_after: 5 },
}));

export const bodyTooSlow = defineError("request_timeout", 408, (bytesPerSecond: number) => ({
  detail: `The transfer moved fewer than ${bytesPerSecond} bytes a second; try again over a faster connection.`,
}));

export const repositoryNotFound = defineError("repository_not_found", 404, () => "No such repository.");

export const repositoryElsewhere = defineError(
  "repository_elsewhere",
  404,
  (url: string) => `This project's repository is at ${url}: push there.`,
);

export const repositoryFull = defineError("repository_full", 413, (limitMb: number) => ({
  detail: `The repository has no space for a push: it may hold ${limitMb} MB, and the server's disk keeps a reserve.`,
  meta: { limit_bytes: limitMb * 1024 ** 2 },
}));

// ---- webhooks

export const hookNotFound = defineError("hook_not_found", 404, () => "No such webhook.");

export const signatureInvalid = defineError(
  "signature_invalid",
  401,
  () => "The signature is missing, or does not match the body and the project's secret.",
);

export const payloadInvalid = defineError("payload_invalid", 400, () => "The body is not valid JSON.");
