/**
 * Who is asking. Every verb that reads or changes an owned thing takes an Actor; it is made in one place, by
 * `authenticate`, from a token or a sign-in session.
 */

import type { Db } from "#db/db.ts";

export const scopes = [
  "platform:read",
  "platform:write",
  "sandboxes:read",
  "sandboxes:write",
  "agents:read",
  "agents:write",
  "agents:invoke",
] as const;
export type Scope = (typeof scopes)[number];

export type Plan = "starter" | "pro" | "team";
export type SandboxTier = "free" | "payg" | "enterprise";
/** A viewer reads and changes nothing. */
export const teamRoles = ["owner", "admin", "member", "viewer"] as const;
export type TeamRole = (typeof teamRoles)[number];

/** One workspace an actor can reach: the personal one or a team's. */
export interface ReachableWorkspace {
  /** Workspace id (uuid); for a team it is the team's id. */
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
  /** Null: full access. */
  scopes: readonly Scope[] | null;
  tokenId: string | null;
  /** True for a token made for a single workspace, which it alone reaches. */
  isBound?: boolean;
  /** True for a token made with `secrets: "hidden"`: responses hold hints in place of secrets. */
  hidesSecrets?: boolean;
  /** Personal one first. A token bound to one workspace reaches that alone. */
  workspaces: readonly ReachableWorkspace[];
  /** In a request that writes: teams left out of `workspaces`, because the actor is a viewer there. */
  viewed?: readonly ReachableWorkspace[];
  ip: string | null;
  /** Told of each deed of this request, in the deed's own transaction; set where the request has an Idempotency-Key. */
  witness?: (tx: Db, deed: Deed) => Promise<void>;
  /** Runs this installation: may read what concerns all of it, such as `/metrics`. */
  isOperator?: boolean;
}

/** What was done, as the activity log has it. */
export interface Deed {
  /** `<noun>.<deed in the past>`, as "project.created". */
  action: string;
  targetId: string | null;
  /** Holds no secret. */
  detail: Readonly<Record<string, unknown>>;
}

/** What a request shows to say who is asking: an API token, or the secret of a sign-in session. */
export interface Credential {
  kind: "token" | "session";
  secret: string;
}

/** A write scope includes its read. `agents:invoke` stands alone: it is for backends that must not change agents. */
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
