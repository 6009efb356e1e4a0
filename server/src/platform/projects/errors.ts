import { defineError } from "#lib/errors.ts";

export const projectNotFound = defineError("project_not_found", 404, () => "No such project.");

export const nameTaken = defineError(
  "name_taken",
  409,
  (name: string) => `The name "${name}" is taken; choose another one.`,
);

export const projectDeployed = defineError(
  "project_deployed",
  409,
  () =>
    "name: the name is part of the address and cannot change once an environment is deployed; create another project.",
);

export const projectHasAddons = defineError(
  "project_has_addons",
  409,
  () =>
    "name: the name is part of the add-ons' addresses and cannot change while the project has add-ons; delete them first.",
);

export const domainTaken = defineError(
  "domain_taken",
  409,
  (hostname: string) => `${hostname} serves another project. Remove it there first.`,
);
