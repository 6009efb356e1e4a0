import { defineError } from "#lib/errors.ts";

export const snapshotNotFound = defineError("snapshot_not_found", 404, () => "No such snapshot.");

export const snapshotNameTaken = defineError(
  "snapshot_name_taken",
  409,
  (name: string) => `There is already a snapshot "${name}" already. Delete it first, or choose another name.`,
);

export const namedSnapshotCapReached = defineError(
  "named_snapshot_cap_reached",
  409,
  (cap: number, tier: string) => ({
    detail: `Tier ${tier} keeps at most ${cap} snapshots. Delete one first.`,
    meta: { limit: "snapshot_cap", allowed: cap },
  }),
);
