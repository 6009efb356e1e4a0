import { defineError } from "#lib/errors.ts";
import { noCapacity, restoreFailed, volumeMissing } from "#machines/errors.ts";
import type { TerminationReason } from "./tables.ts";

export const sandboxNotFound = defineError("sandbox_not_found", 404, () => "No such sandbox.");

export const whyTerminated: Record<TerminationReason, string> = {
  requested: "it was deleted",
  timeout: "it reached its timeout",
  out_of_memory: "it ran out of memory",
  snapshot_expired: "its snapshot reached the end of its retention",
  host_lost: "its machine was lost",
  start_failed: "its machine could not be started",
};

export const sandboxTerminated = defineError(
  "sandbox_terminated",
  409,
  (reason: TerminationReason | null) => ({
    detail: `The sandbox is terminated: ${whyTerminated[reason ?? "requested"]}.`,
    meta: { termination_reason: reason },
  }),
);

export const sandboxPaused = defineError(
  "sandbox_paused",
  409,
  () => "The sandbox is paused. Resume it first, or create the sandbox with auto_resume.",
);

/** Thrown even if the sandbox runs again by now, because it is unknown how much of the call was done. */
export const cutOffByPause = defineError(
  "sandbox_paused",
  409,
  () =>
    "The sandbox was paused during the call, so the call may be incomplete. Check its effects, then repeat it.",
);

export const snapshotCapReached = defineError("snapshot_cap_reached", 409, (cap: number, tier: string) => ({
  detail: `Tier ${tier} keeps at most ${cap} paused sandboxes. Resume or delete one first.`,
  meta: { limit: "snapshot_cap", allowed: cap },
}));

export const volumeAttached = defineError(
  "volume_attached",
  409,
  () =>
    "The sandbox has a volume, which allows one writer at a time, so it cannot be forked or saved as a snapshot.",
);

export const moveTimedOut = defineError("sandbox_busy", 503, () => ({
  detail: "The sandbox is still being paused or resumed. Try again shortly.",
  meta: { retry_after: 5 },
}));

export const timeoutTooLong = defineError("timeout_too_long", 400, (allowed: number, tier: string) => ({
  detail: `timeout_seconds: at most ${allowed} on tier ${tier}.`,
  meta: { limit: "max_timeout_seconds", allowed },
}));

export const unknownTemplate = defineError(
  "invalid_request",
  400,
  (name: string, known: readonly string[]) =>
    `template: unknown template "${name}"; known are ${known.join(", ")}.`,
);

export const invalidField = defineError(
  "invalid_request",
  400,
  (field: string, why: string) => `${field}: ${why}`,
);

/** Errors of a call that wakes a paused sandbox. */
export const wakeErrors = [noCapacity, restoreFailed, volumeMissing, moveTimedOut] as const;

export const readErrors = [sandboxNotFound] as const;
export const runningErrors = [sandboxNotFound, sandboxTerminated, sandboxPaused, ...wakeErrors] as const;
