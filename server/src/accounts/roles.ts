/**
 * Scopes of tokens, plans and tiers of payers, and roles in teams: plain values that every part of the server may
 * import.
 */

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
/** A viewer reads, and changes nothing. */
export const teamRoles = ["owner", "admin", "member", "viewer"] as const;
export type TeamRole = (typeof teamRoles)[number];
