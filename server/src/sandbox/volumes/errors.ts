import { defineError } from "#lib/errors.ts";

export const volumeNotFound = defineError("volume_not_found", 404, () => "No such volume.");

export const volumeExists = defineError(
  "volume_exists",
  409,
  (name: string) => `There is already a volume "${name}" already.`,
);

export const volumeInUse = defineError("volume_in_use", 409, (name: string, sandbox: string) => ({
  detail: `Volume "${name}" belongs to sandbox ${sandbox}, running or paused; terminate that first.`,
  meta: { sandbox_id: sandbox },
}));

export const volumeMoving = defineError("volume_moving", 409, (name: string, to: string) => ({
  detail: `Volume "${name}" is moving to ${to}; try again after the move.`,
  meta: { region: to },
}));

export const volumeElsewhere = defineError(
  "invalid_request",
  400,
  (name: string, region: string) =>
    `region: volume "${name}" is in ${region}; omit the region, or move the volume first.`,
);

export const volumeThere = defineError(
  "invalid_request",
  400,
  (name: string, region: string) => `region: volume "${name}" is in ${region} already.`,
);
