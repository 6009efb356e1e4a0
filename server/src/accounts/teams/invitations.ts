/**
 * Invitations to teams: a person joins only by accepting an invitation. The team invites an e-mail address, and does
 * not learn whether it has an account. A person sees all invitations to their address, even those from before the
 * account. An invitation expires after seven days.
 */
import { transaction } from "#db/db.ts";
import type { Db, Transaction } from "#schema.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import type { TeamRole } from "../roles.ts";
import { recordActivity } from "../activity/activity.ts";
import { accountSuspended } from "../errors.ts";
import { clearActorCache } from "../find-actor.ts";
import { requireFullAccess } from "../full-access.ts";
import { notify } from "../notifications/notifications.ts";
import { requireBelow } from "../plans.ts";
import { requireNotSuspended } from "../workspaces.ts";
import { endInvitations } from "./end-invitations.ts";
import * as store from "./store.ts";
import { alreadyMember, requireRole, requireTeam } from "./teams.ts";

const expiryMs = 7 * 86_400_000;

export const invitationNotFound = defineError("invitation_not_found", 404, () => "No such invitation.");
export const alreadyInvited = defineError(
  "already_invited",
  409,
  (email: string) => `${email} has an open invitation to this team; revoke it to send another.`,
);

type Needs = Pick<App, "db" | "clock">;

/** Returns the same result for an address with and without an account. */
export async function invite(
  app: Needs,
  actor: Actor,
  teamId: string,
  input: { email: string; role: TeamRole },
): Promise<store.InvitationRow> {
  const team = requireNotSuspended(requireTeam(actor, teamId));
  requireFullAccess(actor);
  requireRole(team, input.role === "owner" ? "owner" : "admin");
  const email = input.email.toLowerCase();
  const now = app.clock.now();
  return transaction(app.db, async (tx) => {
    await store.lockTeam(tx, team.id);
    const members = await store.listMembers(tx, team.id);
    if (members.some((member) => member.email === email)) throw alreadyMember(email);
    await store.deleteExpiredInvitations(tx, team.id, now);
    const open = await store.listInvitations(tx, { teamId: team.id }, now);
    if (open.some((invitation) => invitation.email === email)) throw alreadyInvited(email);
    requireBelow(team.plan, "teamMembers", members.length + open.length, team.id);
    const id = await store.insertInvitation(tx, {
      workspace_id: team.id,
      email,
      role: input.role,
      invited_by: actor.userId,
      created_at: now,
      expires_at: new Date(now.getTime() + expiryMs),
    });
    const invitation = await requireInvitation(tx, { teamId: team.id, id }, now);
    await notifyInvited(tx, invitation);
    await recordActivity(tx, actor, "team.member_invited", target(invitation), team.id, { role: input.role });
    return invitation;
  });
}

export async function listTeamInvitations(app: Needs, actor: Actor, teamId: string) {
  const team = requireTeam(actor, teamId);
  requireFullAccess(actor);
  return store.listInvitations(app.db, { teamId: team.id }, app.clock.now());
}

export async function getTeamInvitation(app: Needs, actor: Actor, teamId: string, id: string) {
  const team = requireTeam(actor, teamId);
  requireFullAccess(actor);
  return requireInvitation(app.db, { teamId: team.id, id }, app.clock.now());
}

export async function revokeInvitation(app: Needs, actor: Actor, teamId: string, id: string): Promise<void> {
  const team = requireTeam(actor, teamId);
  requireFullAccess(actor);
  requireRole(team, "admin");
  await transaction(app.db, async (tx) => {
    await store.lockTeam(tx, team.id);
    const invitation = await requireInvitation(tx, { teamId: team.id, id }, app.clock.now());
    await endInvitations(tx, [invitation]);
    await recordActivity(tx, actor, "team.invitation_revoked", target(invitation), team.id);
  });
}

/** Lists the invitations to the caller's own e-mail address. */
export async function listOwnInvitations(app: Needs, actor: Actor): Promise<store.InvitationRow[]> {
  requireFullAccess(actor);
  const email = await store.emailOf(app.db, actor.userId);
  return store.listInvitations(app.db, { email }, app.clock.now());
}

/** Joins the team with the invitation's role. Checks the plan again. */
export async function acceptInvitation(app: Needs, actor: Actor, id: string): Promise<store.TeamRow> {
  requireFullAccess(actor);
  const now = app.clock.now();
  const teamId = await transaction(app.db, async (tx) => {
    const email = await store.emailOf(tx, actor.userId);
    const { workspace_id } = await requireInvitation(tx, { email, id }, now);
    const team = await store.lockPlan(tx, workspace_id);
    // Reads the invitation again under the lock, because another request may have revoked or accepted it.
    const invitation = await requireInvitation(tx, { email, id }, now);
    if (!team) throw invitationNotFound();
    if (team.suspended_at !== null) throw accountSuspended();
    const members = await store.listMembers(tx, workspace_id);
    requireBelow(team.plan, "teamMembers", members.length, workspace_id);
    await store.insertMember(tx, workspace_id, actor.userId, invitation.role);
    await endInvitations(tx, [invitation]);
    const joined = { kind: "user", id: actor.userId, label: email };
    await recordActivity(tx, actor, "team.member_added", joined, workspace_id, { role: invitation.role });
    return workspace_id;
  });
  clearActorCache(app);
  const [team] = await store.listTeams(app.db, actor.userId, [teamId]);
  if (!team) throw invitationNotFound();
  return team;
}

export async function declineInvitation(app: Needs, actor: Actor, id: string): Promise<void> {
  requireFullAccess(actor);
  const now = app.clock.now();
  await transaction(app.db, async (tx) => {
    const email = await store.emailOf(tx, actor.userId);
    const { workspace_id } = await requireInvitation(tx, { email, id }, now);
    await store.lockPlan(tx, workspace_id);
    const invitation = await requireInvitation(tx, { email, id }, now);
    await endInvitations(tx, [invitation]);
    await recordActivity(tx, actor, "team.invitation_declined", target(invitation), workspace_id);
  });
}

async function notifyInvited(tx: Transaction, invitation: store.InvitationRow): Promise<void> {
  const { id, team_name, email, role, invited_by } = invitation;
  const workspaceId = await store.findPersonalWorkspace(tx, email);
  if (workspaceId === undefined) return;
  await notify(tx, {
    workspaceId,
    kind: "team_invitation",
    title: `Invitation to the team ${team_name}`,
    body: `${invited_by} invites you to join as ${role}. Accept or decline it within seven days.`,
    target: { kind: "invitation", id, label: team_name },
  });
}

async function requireInvitation(
  db: Db,
  { id, ...scope }: store.InvitationScope & { id: string },
  now: Date,
): Promise<store.InvitationRow> {
  const open = await store.listInvitations(db, scope, now);
  const invitation = open.find((row) => row.id === id.toLowerCase());
  if (!invitation) throw invitationNotFound();
  return invitation;
}

const target = ({ id, email }: store.InvitationRow) => ({ kind: "invitation", id, label: email });
