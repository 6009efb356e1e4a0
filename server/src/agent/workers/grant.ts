/**
 * Limits an agent to its publisher's rights. Compares the agent's config with the token that publishes or starts the
 * agent.
 */
import { type Actor, hasScope } from "#accounts/actor.ts";
import type { Scope } from "#accounts/roles.ts";
import type { Db } from "#schema.ts";
import { defineError, DomainError } from "#lib/errors.ts";
import { type AgentRecord, getVersion } from "../agents/agents.ts";
import type { AgentConfig } from "../agents/config.ts";
import { invalidField, versionNotFound } from "../errors.ts";

/** Error for a scope that the token lacks. Every other error for a missing scope has the same code. */
const scopeNotHeld = defineError("missing_scope", 403, (scope: string, field: string, pointer: string) => ({
  detail:
    `${field} grants the agent ${scope}, which this token lacks; use a token that has it, or ` +
    `remove ${field}.`,
  meta: { scope, pointer },
}));

interface Grant {
  scope: Scope;
  /** Path of the field in the config. */
  field: readonly (string | number)[];
}

/**
 * Returns the scopes that a config grants. A machine is a root shell in a sandbox, with access to its volume and its
 * network.
 */
function grantsOf({ platform, vm }: AgentConfig): Grant[] {
  const scope = "sandboxes:write";
  const inMachine = vm?.enabled
    ? [
        ...(vm.volume === null ? [] : [{ scope, field: ["vm", "volume"] } as const]),
        ...(vm.network === "open" ? [{ scope, field: ["vm", "network"] } as const] : []),
        { scope, field: ["vm"] } as const,
      ]
    : [];
  const scopes = (platform?.scopes ?? []).map((one, place) => ({
    scope: one,
    field: ["platform", "scopes", place],
  }));
  return [...scopes, ...inMachine];
}

/**
 * Throws unless the actor has all scopes that the config grants. `pointer`: the body's field that selects the version;
 * absent if the body contains the config.
 */
export function requireHeld(actor: Actor, config: AgentConfig, pointer?: string): void {
  for (const { scope, field } of grantsOf(config)) {
    if (hasScope(actor, scope)) continue;
    const path = ["config", ...field];
    throw scopeNotHeld(scope, path.join("."), pointer ?? `/${path.join("/")}`);
  }
}

/**
 * Throws unless the actor has the scopes of the version that a schedule or webhook runs. Throws `invalid_request` if
 * the qualifier names no version. Without a `qualifier` in the body, the pointer is the whole body.
 */
export async function requireServedHeld(
  db: Db,
  actor: Actor,
  agent: Pick<AgentRecord, "id" | "latest_version">,
  { qualifier, isInBody }: { qualifier: string; isInBody: boolean },
): Promise<void> {
  if (actor.scopes === null && !isInBody) return;
  const { config } = await getVersion(db, agent, qualifier).catch((error: unknown) => {
    if (!isInBody || !(error instanceof DomainError) || error.code !== versionNotFound.code) throw error;
    throw invalidField(
      ["qualifier"],
      "selects no version and no alias of the agent; send `prod`, for example",
    );
  });
  requireHeld(actor, config as AgentConfig, isInBody ? "/qualifier" : "");
}
