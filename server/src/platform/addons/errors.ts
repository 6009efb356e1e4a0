import { defineError } from "#lib/errors.ts";

export const addonNotFound = defineError("addon_not_found", 404, () => "No such add-on.");

export const addonExists = defineError(
  "addon_exists",
  409,
  (name: string) => `name: the project already has an add-on "${name}".`,
);

export const addonNotRunning = defineError("addon_not_running", 409, (status: string) => ({
  detail: `The add-on is ${status}; wait until it is running.`,
  meta: { status },
}));

export const noPublicPort = defineError(
  "no_public_port",
  409,
  (count: number) =>
    `public: all ${count} ports for public add-ons are taken; the operator can add more (addons_ports).`,
);

/** A failure of a database engine. The message is for the add-on's owner. */
export class EngineFailure extends Error {
  override readonly name = "EngineFailure";
}
