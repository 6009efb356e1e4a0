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
