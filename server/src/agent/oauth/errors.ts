import { defineError } from "#lib/errors.ts";

export const connectionNotFound = defineError(
  "connection_not_found",
  404,
  () => "Nobody of that id is signed in to the toolset.",
);
export const noSignIn = defineError(
  "no_sign_in",
  409,
  () => "Nobody signs in to this toolset; make one with auth_type oauth.",
);
export const signInUnavailable = defineError(
  "sign_in_unavailable",
  424,
  (why: string) => `Nobody can sign in to the toolset now. ${why}`,
);
