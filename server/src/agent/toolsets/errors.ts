import { defineError } from "#lib/errors.ts";

export const toolsetNotFound = defineError("toolset_not_found", 404, () => "No such toolset.");
export const toolsetNameTaken = defineError(
  "name_taken",
  409,
  (name: string) => `The account already has a toolset named "${name}". Use another name.`,
);
export const toolsetInUse = defineError("toolset_in_use", 409, (agents: readonly string[]) => ({
  detail:
    `An alias of ${agents.join(", ")} points at a version that uses it; publish a version without ` +
    "it first.",
  meta: { agents },
}));
export const toolsetNotRefreshable = defineError(
  "toolset_not_refreshable",
  409,
  () => "An http toolset has no server to read tools from; change its tools with PATCH.",
);
export const toolsetLimitReached = defineError("toolset_limit_reached", 409, (allowed: number) => ({
  detail: `An account has at most ${allowed} toolsets; delete one first.`,
  meta: { limit: "toolsets", allowed },
}));
