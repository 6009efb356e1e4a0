import { defineError } from "#lib/errors.ts";

export const connectionNotFound = defineError(
  "connection_not_found",
  404,
  () => "The toolset has no connection of this end user. GET its /connections for the list.",
);
export const noSignIn = defineError(
  "no_sign_in",
  409,
  () => "The toolset does not use sign-in. Create one with auth_type oauth.",
);
export const signInUnavailable = defineError(
  "sign_in_unavailable",
  424,
  (why: string) => `Sign-in to the toolset is not possible now. ${why}`,
);
