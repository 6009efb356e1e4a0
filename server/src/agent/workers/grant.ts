/** Who may let an agent act: nobody gives away what they do not have. */
import { type Actor, hasScope } from "#accounts/actor.ts";
import { defineError } from "#lib/errors.ts";
import type { AgentConfig } from "../agents/config.ts";

/** The code of every scope that is missing. */
export const scopeNotHeld = defineError("missing_scope", 403, (scope: string, place: number) => ({
  detail: `The config grants ${scope}, which this token does not have itself; publish with one that has it, or leave it out.`,
  meta: { scope, pointer: `/config/platform/scopes/${place}` },
}));

export function requireHeld(actor: Actor, { platform }: AgentConfig): void {
  for (const [place, scope] of (platform?.scopes ?? []).entries()) {
    if (!hasScope(actor, scope)) throw scopeNotHeld(scope, place);
  }
}
