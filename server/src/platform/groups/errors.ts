import { defineError } from "#lib/errors.ts";

export const groupNotFound = defineError("group_not_found", 404, () => "No such project group.");

export const groupLimitReached = defineError("group_limit_reached", 409, (allowed: number) => ({
  detail: `A workspace has at most ${allowed} project groups.`,
  meta: { limit: "groups", allowed },
}));

export const otherWorkspace = defineError(
  "other_workspace",
  409,
  () => "The project and the group are in different workspaces; choose a group of the project's workspace.",
);
