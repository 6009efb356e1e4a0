import { defineError } from "#lib/errors.ts";

export const sessionParking = defineError("session_parking", 409, () => ({
  detail: "The session's machine is being parked; try again in a moment.",
  meta: { retry_after: 1 },
}));
