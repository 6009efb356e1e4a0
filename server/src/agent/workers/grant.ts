/** Who may let an agent act: nobody gives away what they do not have. */
import { type Actor, hasScope } from "#accounts/actor.ts";
import { defineError } from "#lib/errors.ts";
import type { AgentConfig } from "../agents/config.ts";

/** The code of every scope that is missing. */
export const scopeNotHeld = defineError("missing_scope", 403, (scope: string, pointer: string) => ({
  detail: `The config grants ${scope}, which this token does not have itself; use one that has it, or a config without it.`,
  meta: { scope, pointer },
}));

/** `pointerTo`: where the body names the scope of that place. */
export function requireHeld(
  actor: Actor,
  { platform }: AgentConfig,
  pointerTo: (place: number) => string,
): void {
  for (const [place, scope] of (platform?.scopes ?? []).entries()) {
    if (!hasScope(actor, scope)) throw scopeNotHeld(scope, pointerTo(place));
  }
}

/** In a body that holds the config. */
export const pointerToScope = (place: number): string => `/config/platform/scopes/${place}`;
