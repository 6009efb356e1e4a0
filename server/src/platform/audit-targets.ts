/**
 * Targets of audit entries for reads of secrets and for downloads. Ids are converted to lower case, as in the database.
 * An entry with another spelling would be missing from the workspace's log.
 */
import { workspacesOfAddons } from "./addons/find.ts";
import { workspacesOfFunctions } from "./functions/functions.ts";
import { workspacesOfProjects } from "./projects/projects.ts";

export const onProject = {
  kind: "project",
  id: ({ project_id }: { project_id: string }) => project_id.toLowerCase(),
  workspacesOf: workspacesOfProjects,
} as const;

export const onAddon = {
  kind: "addon",
  id: ({ addon_id }: { addon_id: string }) => addon_id.toLowerCase(),
  workspacesOf: workspacesOfAddons,
} as const;

export const onFunction = {
  kind: "function",
  id: ({ function_id }: { function_id: string }) => function_id.toLowerCase(),
  workspacesOf: workspacesOfFunctions,
} as const;
