import { defineError } from "#lib/errors.ts";
import { invalidField } from "../input/schema.ts";

export const environmentNotFound = defineError("environment_not_found", 404, () => "No such environment.");

export const environmentExists = defineError(
  "environment_exists",
  409,
  (name: string) => `The project has an environment "${name}" already.`,
);

export const environmentProtected = defineError(
  "environment_protected",
  409,
  () => "The production environment cannot be deleted; delete its project instead.",
);

export const hostTooLong = (label: string) =>
  invalidField(
    "name",
    `"${label}" would be the first label of the environment's host, and is longer than 63 characters; choose a shorter name`,
  );

export const tooManyVariables = () =>
  invalidField("env_vars", "there may be at most 200 variables with 64 KiB in all, stored ones included");
