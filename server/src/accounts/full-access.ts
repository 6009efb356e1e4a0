/**
 * The guard of all operations that grant rights: tokens, members, roles, invitations. A token must never widen itself,
 * so only a signed-in person or an unrestricted token passes.
 */
import { defineError } from "#lib/errors.ts";
import type { Actor } from "./actor.ts";

const agentTokenRefused = defineError(
  "agent_token_refused",
  403,
  () =>
    "A token of an agent's run may not read or change tokens, nor change members of teams; use a " +
    "signed-in session or a full-access token.",
);
const fullAccessRequired = defineError(
  "full_access_required",
  403,
  () =>
    "Use a signed-in session or a full-access token: a token that has scopes, is bound to a workspace or hides secrets cannot widen itself.",
);

/** Errors that `requireFullAccess` throws, for the routes behind it. */
export const fullAccessErrors = [agentTokenRefused, fullAccessRequired];

export function requireFullAccess(actor: Actor): void {
  if (actor.kind === "worker") throw agentTokenRefused();
  if (actor.scopes !== null || actor.isBound === true || actor.hidesSecrets === true)
    throw fullAccessRequired();
}
