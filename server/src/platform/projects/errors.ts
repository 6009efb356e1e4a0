import { defineError } from "#lib/errors.ts";

export const projectNotFound = defineError("project_not_found", 404, () => "No such project.");

export const nameTaken = defineError("name_taken", 409, (name: string) => `The name "${name}" is taken.`);

export const projectDeployed = defineError(
  "project_deployed",
  409,
  () => "name: the name is part of the address, and stays while anything of the project is deployed.",
);

export const projectHasAddons = defineError(
  "project_has_addons",
  409,
  () => "name: the name is part of its add-ons' addresses, and stays while there are any.",
);

export const domainTaken = defineError(
  "domain_taken",
  409,
  (hostname: string) => `${hostname} serves another project. Remove it there first.`,
);
