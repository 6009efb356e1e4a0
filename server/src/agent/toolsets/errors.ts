import { defineError } from "#lib/errors.ts";

export const toolsetNotFound = defineError("toolset_not_found", 404, () => "No such toolset.");
export const toolsetNameTaken = defineError(
  "name_taken",
  409,
  (name: string) => `The account has a toolset "${name}" already.`,
);
export const toolsetInUse = defineError("toolset_in_use", 409, (agents: readonly string[]) => ({
  detail: `An alias of ${agents.join(", ")} points at a version that uses it; publish one without it first.`,
  meta: { agents },
}));
export const toolsetNotRefreshable = defineError(
  "toolset_not_refreshable",
  409,
  () => "The tools of an http toolset are those it says; change them with PATCH.",
);
export const toolsetLimitReached = defineError("toolset_limit_reached", 409, (allowed: number) => ({
  detail: `An account has at most ${allowed} toolsets; delete one first.`,
  meta: { limit: "toolsets", allowed },
}));
