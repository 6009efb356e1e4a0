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

/** `what` is exceeded: files, or bytes. */
export const repositoryTooLarge = defineError(
  "repository_too_large",
  409,
  (what: "files" | "megabytes", limit: number) => ({
    detail: `The repository is larger than the ${limit} ${what} a checkout may have.`,
    meta: { limit },
  }),
);

/** Its address is none we fetch from. */
export const repositoryRefused = defineError(
  "repository_refused",
  409,
  (why: string) => `The repository can't be fetched: ${why}`,
);

/** Somebody answered, or nobody, and not with a repository. `why` may be shown to the project's owner. */
export const repositoryUnavailable = defineError(
  "repository_unavailable",
  409,
  (why: string) => `The repository can't be fetched: ${why}`,
);

export const hostKeyChanged = defineError(
  "host_key_changed",
  409,
  (host: string) =>
    `The ssh host key of ${host} is not the one that is trusted. Somebody may be in between. If the forge did change its key, set the project's repo_url again to trust the new one.`,
);

// ---- of hosting, said to a git client

export const tokenWanted = defineError(
  "unauthenticated",
  401,
  () => "Use any user name, and an API token as the password.",
);

export const tooManyWaiting = defineError("unavailable", 503, () => ({
  detail: "Too many of your fetches and pushes are waiting; try again once one has finished.",
  meta: { retry_after: 5 },
}));

export const bodyTooSlow = defineError("request_timeout", 408, (bytesPerSecond: number) => ({
  detail: `The transfer moved fewer than ${bytesPerSecond} bytes a second; try again over a faster connection.`,
}));

export const repositoryNotFound = defineError("repository_not_found", 404, () => "No such repository.");

export const repositoryElsewhere = defineError(
  "repository_elsewhere",
  404,
  (url: string) => `This project is fetched from ${url}: push there.`,
);

export const repositoryFull = defineError("repository_full", 413, (limitMb: number) => ({
  detail: `There is no room for a push: a repository holds ${limitMb} MB at most, and the disk keeps some free.`,
  meta: { limit_bytes: limitMb * 1024 ** 2 },
}));

// ---- of hooks

export const hookNotFound = defineError("hook_not_found", 404, () => "No such webhook.");

export const signatureInvalid = defineError(
  "signature_invalid",
  401,
  () => "The signature does not fit the body and the project's secret, or there is none.",
);

export const payloadInvalid = defineError("payload_invalid", 400, () => "The body is no JSON.");
