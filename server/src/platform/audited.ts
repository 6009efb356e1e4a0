/** Targets of entries of the audit log for reads of secrets and requests for downloads. */
import { workspacesOfAddons } from "./addons/find.ts";
import { workspacesOfFunctions } from "./functions/functions.ts";
import { workspacesOfProjects } from "./projects/projects.ts";

export const onProject = {
  kind: "project",
  id: ({ project_id }: { project_id: string }) => project_id,
  workspacesOf: workspacesOfProjects,
} as const;

export const onAddon = {
  kind: "addon",
  id: ({ addon_id }: { addon_id: string }) => addon_id,
  workspacesOf: workspacesOfAddons,
} as const;

export const onFunction = {
  kind: "function",
  id: ({ function_id }: { function_id: string }) => function_id,
  workspacesOf: workspacesOfFunctions,
} as const;
