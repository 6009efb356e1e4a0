/**
 * Teams: a workspace that several people share. Owners may do everything, admins manage members, members use it, and
 * viewers read. A team always has an owner: the last owner can neither leave nor step down. A caller outside the team
 * gets the response for a missing team. People join by accepting an invitation: see `invitations.ts`.
 */
import { transaction } from "#db/db.ts";
import type { Db, Transaction } from "#schema.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor, ReachableWorkspace } from "../actor.ts";
import type { Plan, SandboxTier, TeamRole } from "../roles.ts";
import { recordActivity } from "../activity/activity.ts";
import { insufficientRole } from "../errors.ts";
import { clearActorCache } from "../find-actor.ts";
import { requireFullAccess } from "../full-access.ts";
import { type Holding, listHoldings } from "../holdings.ts";
import { requireBelow } from "../plans.ts";
import { userNotFound } from "../users/users.ts";
import { requireNotSuspended } from "../workspaces.ts";
import { endInvitationsBy, endInvitationsTo } from "./end-invitations.ts";
import * as store from "./store.ts";

export const teamNotFound = defineError("team_not_found", 404, () => "No such team.");
export const memberNotFound = defineError("member_not_found", 404, () => "No such member in this team.");
export const alreadyMember = defineError(
  "already_member",
  409,
  (email: string) => `${email} is already in this team.`,
);
export const lastOwner = defineError(
  "last_owner",
  409,
  () => "A team needs at least one owner; make another member an owner first.",
);
export const teamNotEmpty = defineError("team_not_empty", 409, (left: readonly string[]) => ({
  detail: `The team still holds ${left.join(", ")}; delete them first.`,
  meta: { left },
}));

type Needs = Pick<App, "db">;

export function listTeams({ db }: Needs, actor: Actor): Promise<store.TeamRow[]> {
  return store.listTeams(
    db,
    actor.userId,
    teamsOf(actor).map(({ id }) => id),
  );
}

/** Lists all teams, for the operator. */
export function listAllTeams({ db }: Needs): Promise<store.TeamRow[]> {
  return store.listTeams(db, null, null);
}

export async function getTeam({ db }: Needs, actor: Actor, id: string) {
  requireTeam(actor, id);
  const [team] = await store.listTeams(db, actor.userId, [id]);
  if (!team) throw teamNotFound();
  return { ...team, members: await store.listMembers(db, id) };
}

export async function countMembers(db: Db, id: string): Promise<number> {
  return (await store.listMembers(db, id)).length;
}

/** A new team gets its creator's plan and tier; the operator can change both. */
export async function createTeam(app: Needs, actor: Actor, input: { name: string }) {
  const personal = actor.workspaces.find(({ kind }) => kind === "personal");
  // A token bound to one team reaches only that team, and cannot create another.
  if (!personal) throw insufficientRole("owner");
  requireNotSuspended(personal);
  return insertTeam(
    app,
    actor,
    { name: input.name, ownerId: actor.userId, plan: personal.plan, sandboxTier: personal.sandboxTier },
    async (tx) => {
      await tx.selectFrom("workspaces").select("id").where("id", "=", personal.id).forUpdate().execute();
      requireBelow(personal.plan, "teams", await store.countOwned(tx, actor.userId), personal.id);
    },
  );
}

interface NewTeam {
  name: string;
  ownerId: string;
  plan: Plan;
  sandboxTier: SandboxTier;
}

/** Creates a team for another person, on any plan; for the operator. */
export function createTeamFor(app: Needs, actor: Actor, input: NewTeam) {
  return insertTeam(app, actor, input, async () => undefined);
}

async function insertTeam(
  app: Needs,
  actor: Actor,
  input: NewTeam,
  allow: (tx: Transaction) => Promise<void>,
) {
  const id = await transaction(app.db, async (tx) => {
    await allow(tx);
    const teamId = await store.insertTeam(tx, input);
    await store.insertMember(tx, teamId, input.ownerId, "owner");
    await recordActivity(tx, actor, "team.created", { kind: "team", id: teamId, label: input.name }, teamId);
    return teamId;
  });
  clearActorCache(app);
  const [team] = await store.listTeams(app.db, input.ownerId, [id]);
  return { ...team!, members: await store.listMembers(app.db, id) };
}

export async function renameTeam(app: Needs, actor: Actor, id: string, input: { name?: string | undefined }) {
  requireRole(requireNotSuspended(requireTeam(actor, id)), "admin");
  if (input.name !== undefined) {
    const name = input.name;
    await transaction(app.db, async (tx) => {
      await tx.updateTable("workspaces").set({ name }).where("id", "=", id).execute();
      await recordActivity(tx, actor, "team.renamed", { kind: "team", id, label: name }, id);
    });
  }
  return getTeam(app, actor, id);
}

/** Deletes the team. The operator keeps its audit log; the deletion is audited in the actor's personal workspace. */
export async function deleteTeam(
  app: Needs,
  actor: Actor,
  id: string,
  holdings: readonly Holding[],
): Promise<void> {
  const team = requireTeam(actor, id);
  requireFullAccess(actor);
  requireRole(team, "owner");
  await transaction(app.db, async (tx) => {
    const { name } = await store.lockTeam(tx, id);
    const left = await listHoldings(tx, holdings, id);
    if (left.length > 0) throw teamNotEmpty(left);
    await tx.deleteFrom("workspaces").where("id", "=", id).execute();
    const personal = actor.workspaces.find(({ kind }) => kind === "personal")?.id ?? null;
    await recordActivity(tx, actor, "team.deleted", { kind: "team", id, label: name }, personal);
  });
  clearActorCache(app);
}

/** Adds a member at once, even beyond the plan; for the operator. */
export async function addMemberBeyondPlan(
  app: Needs,
  actor: Actor,
  id: string,
  { email, role }: { email: string; role: TeamRole },
) {
  const member = await transaction(app.db, async (tx) => {
    await store.lockTeam(tx, id);
    const user = await tx
      .selectFrom("users")
      .select(["id", "email"])
      .where("email", "=", email.toLowerCase())
      .executeTakeFirst();
    if (!user) throw userNotFound(email);
    const members = await store.listMembers(tx, id);
    if (members.some(({ user_id }) => user_id === user.id)) throw alreadyMember(user.email);
    await store.insertMember(tx, id, user.id, role);
    await endInvitationsTo(tx, id, user.email);
    const target = { kind: "user", id: user.id, label: user.email };
    await recordActivity(tx, actor, "team.member_added", target, id, { role });
    return requireMember(tx, id, user.id);
  });
  clearActorCache(app);
  return member;
}

export async function changeMember(app: Needs, actor: Actor, id: string, userId: string, role: TeamRole) {
  const team = requireNotSuspended(requireTeam(actor, id));
  requireFullAccess(actor);
  requireRole(team, "admin");
  const changed = await transaction(app.db, async (tx) => {
    await store.lockTeam(tx, id);
    const member = await requireMember(tx, id, userId);
    if (member.role === "owner" || role === "owner") requireRole(team, "owner");
    if (member.role === "owner" && role !== "owner") await requireAnotherOwner(tx, id, userId);
    await tx
      .updateTable("team_members")
      .set({ role })
      .where("workspace_id", "=", id)
      .where("user_id", "=", userId)
      .execute();
    await endInvitationsBy(tx, id, userId);
    const target = { kind: "user", id: userId, label: member.email };
    await recordActivity(tx, actor, "team.member_changed", target, id, { from: member.role, role });
    return { ...member, role };
  });
  clearActorCache(app);
  return changed;
}

/** Removes a member. Every member may leave; their tokens for this team end with the membership. */
export function removeMember(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
  userId: string,
): Promise<void> {
  const team = requireTeam(actor, id);
  requireFullAccess(actor);
  if (userId.toLowerCase() !== actor.userId) requireRole(team, "admin");
  return deleteMember(app, actor, id, userId, (member) => {
    if (member.role === "owner") requireRole(team, "owner");
  });
}

/** Removes any member but the last owner; for the operator. */
export function removeMemberOf(app: Pick<App, "db" | "clock">, actor: Actor, id: string, userId: string) {
  return deleteMember(app, actor, id, userId, () => undefined);
}

async function deleteMember(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  id: string,
  userId: string,
  allow: (member: store.MemberRow) => void,
): Promise<void> {
  await transaction(app.db, async (tx) => {
    await store.lockTeam(tx, id);
    const member = await requireMember(tx, id, userId);
    allow(member);
    if (member.role === "owner") await requireAnotherOwner(tx, id, userId);
    await store.removeMember(tx, id, userId, app.clock.now());
    await endInvitationsBy(tx, id, userId);
    const target = { kind: "user", id: userId, label: member.email };
    await recordActivity(tx, actor, "team.member_removed", target, id);
  });
  clearActorCache(app);
}

const teamsOf = (actor: Actor): ReachableWorkspace[] =>
  actor.workspaces.filter(({ kind }) => kind === "team");

export function requireTeam(actor: Actor, id: string): ReachableWorkspace {
  const team = teamsOf(actor).find((workspace) => workspace.id === id.toLowerCase());
  if (!team) throw teamNotFound();
  return team;
}

const rank: Record<TeamRole, number> = { viewer: 0, member: 1, admin: 2, owner: 3 };

export function requireRole({ role }: ReachableWorkspace, needed: "admin" | "owner"): void {
  if (rank[role] < rank[needed]) throw insufficientRole(needed);
}

async function requireMember(tx: Db, id: string, userId: string): Promise<store.MemberRow> {
  const member = (await store.listMembers(tx, id)).find(({ user_id }) => user_id === userId.toLowerCase());
  if (!member) throw memberNotFound();
  return member;
}

async function requireAnotherOwner(tx: Db, id: string, userId: string): Promise<void> {
  const members = await store.listMembers(tx, id);
  if (!members.some((member) => member.role === "owner" && member.user_id !== userId.toLowerCase()))
    throw lastOwner();
}
