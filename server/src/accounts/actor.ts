/**
 * The identity behind a request. Every function that reads or changes an owned resource takes an Actor. Only
 * `authenticate` creates an Actor, from a token or a session.
 */

import type { Db } from "#schema.ts";
import type { Plan, SandboxTier, Scope, TeamRole } from "./roles.ts";

/** A workspace that an actor reaches: the personal workspace, or a team's. */
export interface ReachableWorkspace {
  /** Workspace id (UUID). For a team it is the team's id. */
  id: string;
  kind: "personal" | "team";
  role: TeamRole;
  plan: Plan;
  sandboxTier: SandboxTier;
  suspended: boolean;
}

export interface Actor {
  kind: "user" | "api_token" | "worker" | "system";
  /** User id, token id or worker id. */
  id: string;
  label: string;
  role: TeamRole | null;
  userId: string;
  /** Null means full access. */
  scopes: readonly Scope[] | null;
  tokenId: string | null;
  /** True for a token that was created for a single workspace and reaches no other. */
  isBound?: boolean;
  /** True for a token created with `secrets: "hidden"`: responses hold hints in place of secrets. */
  hidesSecrets?: boolean;
  /** The personal workspace comes first. A token bound to a workspace has only this workspace here. */
  workspaces: readonly ReachableWorkspace[];
  /** In a request that writes: teams left out of `workspaces`, because the actor is a viewer there. */
  viewed?: readonly ReachableWorkspace[];
  ip: string | null;
  /**
   * Called for each activity of the request, in the transaction of the activity. Set if the request has an
   * Idempotency-Key.
   */
  onActivity?: (tx: Db, deed: ActivityRecord) => Promise<void>;
  /** True for an operator of this installation, who may read data about all of it, such as `/metrics`. */
  isOperator?: boolean;
}

/** An action and its target, as the activity log stores them. */
interface ActivityRecord {
  /** `<noun>.<past participle>`, such as "project.created". */
  action: string;
  targetId: string | null;
  /** Must not hold secrets. */
  detail: Readonly<Record<string, unknown>>;
}

/** The credential of a request: an API token, or the secret of a session. */
export interface Credential {
  kind: "token" | "session";
  secret: string;
}

/**
 * A write scope includes its read scope. `agents:invoke` includes none: it is for backends that must not change agents.
 */
const includes: Partial<Record<Scope, Scope>> = {
  "platform:read": "platform:write",
  "sandboxes:read": "sandboxes:write",
  "agents:read": "agents:write",
};

export function hasScope({ scopes: held }: Pick<Actor, "scopes">, scope: Scope): boolean {
  if (held === null) return true;
  const wider = includes[scope];
  return held.includes(scope) || (wider !== undefined && held.includes(wider));
}
