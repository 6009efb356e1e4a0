import { type Insertable, sql } from "kysely";
import type { Db } from "#schema.ts";
import type { Plan, SandboxTier, TeamRole } from "../roles.ts";
import type { TeamInvitationsTable } from "../tables.ts";

export interface TeamRow {
  id: string;
  name: string;
  /** The role of the caller. Null for the operator, who is not a member. */
  role: TeamRole | null;
  plan: Plan;
  sandbox_tier: SandboxTier;
  suspended_at: Date | null;
  member_count: number;
  created_at: Date;
}

export interface MemberRow {
  user_id: string;
  email: string;
  name: string;
  role: TeamRole;
  created_at: Date;
}

/** Lists teams, newest first. With `ids` null, lists all teams. */
export function listTeams(db: Db, userId: string | null, ids: readonly string[] | null): Promise<TeamRow[]> {
  let teams = db
    .selectFrom("workspaces as w")
    .leftJoin("team_members as m", (join) =>
      join.onRef("m.workspace_id", "=", "w.id").on("m.user_id", "=", userId),
    )
    .select(["w.id", "w.name", "m.role", "w.plan", "w.sandbox_tier", "w.suspended_at", "w.created_at"])
    .select(sql<number>`(select count(*) from team_members c where c.workspace_id = w.id)`.as("member_count"))
    .where("w.kind", "=", "team")
    .orderBy("w.created_at", "desc")
    .orderBy("w.id", "desc");
  if (ids !== null) teams = teams.where("w.id", "=", sql<string>`any(${sql.val([...ids])}::uuid[])`);
  return teams.execute();
}

/** Lists members in the order in which they joined. */
export function listMembers(db: Db, teamId: string): Promise<MemberRow[]> {
  return db
    .selectFrom("team_members as m")
    .innerJoin("users as u", "u.id", "m.user_id")
    .select(["m.user_id", "u.email", "u.name", "m.role", "m.created_at"])
    .where("m.workspace_id", "=", teamId)
    .orderBy("m.created_at")
    .orderBy("m.user_id")
    .execute();
}

/** Locks the team until the end of the transaction, so that changes of its members happen one after the other. */
export function lockTeam(tx: Db, teamId: string): Promise<{ name: string }> {
  return tx
    .selectFrom("workspaces")
    .select("name")
    .where("id", "=", teamId)
    .where("kind", "=", "team")
    .forUpdate()
    .executeTakeFirstOrThrow();
}

export async function countOwned(db: Db, userId: string): Promise<number> {
  const { count } = await db
    .selectFrom("team_members")
    .select(({ fn }) => fn.countAll<number>().as("count"))
    .where("user_id", "=", userId)
    .where("role", "=", "owner")
    .executeTakeFirstOrThrow();
  return count;
}

export async function insertTeam(
  db: Db,
  { name, plan, sandboxTier }: { name: string; plan: Plan; sandboxTier: SandboxTier },
): Promise<string> {
  const row = await db
    .insertInto("workspaces")
    .values({ kind: "team", owner_user_id: null, name, plan, sandbox_tier: sandboxTier, suspended_at: null })
    .returning("id")
    .executeTakeFirstOrThrow();
  return row.id;
}

export async function insertMember(db: Db, teamId: string, userId: string, role: TeamRole): Promise<void> {
  await db.insertInto("team_members").values({ workspace_id: teamId, user_id: userId, role }).execute();
}

export async function removeMember(db: Db, teamId: string, userId: string, now: Date): Promise<void> {
  await db
    .deleteFrom("team_members")
    .where("workspace_id", "=", teamId)
    .where("user_id", "=", userId)
    .execute();
  await db
    .updateTable("api_tokens")
    .set({ revoked_at: now })
    .where("workspace_id", "=", teamId)
    .where("user_id", "=", userId)
    .where("revoked_at", "is", null)
    .execute();
}

/** Locks the team until the end of the transaction, and returns its plan. Undefined if the team is deleted. */
export function lockPlan(
  tx: Db,
  teamId: string,
): Promise<{ plan: Plan; suspended_at: Date | null } | undefined> {
  return tx
    .selectFrom("workspaces")
    .select(["plan", "suspended_at"])
    .where("id", "=", teamId)
    .forUpdate()
    .executeTakeFirst();
}

// ---- invitations

export interface InvitationRow {
  id: string;
  workspace_id: string;
  team_name: string;
  email: string;
  role: TeamRole;
  /** E-mail address of the inviter. */
  invited_by: string;
  created_at: Date;
  expires_at: Date;
}

/** Selects the invitations of a team, or those of an address. */
export type InvitationScope = { teamId: string } | { email: string };

const invitations = (db: Db) =>
  db
    .selectFrom("team_invitations as i")
    .innerJoin("workspaces as w", "w.id", "i.workspace_id")
    .innerJoin("users as u", "u.id", "i.invited_by")
    .select(["i.id", "i.workspace_id", "w.name as team_name", "i.email", "i.role"])
    .select(["u.email as invited_by", "i.created_at", "i.expires_at"])
    .orderBy("i.created_at", "desc")
    .orderBy("i.id", "desc");

/** Lists open invitations, newest first. */
export function listInvitations(db: Db, scope: InvitationScope, now: Date): Promise<InvitationRow[]> {
  const open = invitations(db).where("i.expires_at", ">", now);
  return "teamId" in scope
    ? open.where("i.workspace_id", "=", scope.teamId).execute()
    : open.where("i.email", "=", scope.email).execute();
}

/** Lists the invitations that a person sent, including expired invitations. */
export function listInvitationsBy(db: Db, teamId: string, userId: string): Promise<InvitationRow[]> {
  return invitations(db).where("i.workspace_id", "=", teamId).where("i.invited_by", "=", userId).execute();
}

/** Lists the invitations to an address, including expired invitations. */
export function listInvitationsTo(db: Db, teamId: string, email: string): Promise<InvitationRow[]> {
  return invitations(db).where("i.workspace_id", "=", teamId).where("i.email", "=", email).execute();
}

export async function insertInvitation(db: Db, row: Insertable<TeamInvitationsTable>): Promise<string> {
  const { id } = await db
    .insertInto("team_invitations")
    .values(row)
    .returning("id")
    .executeTakeFirstOrThrow();
  return id;
}

export async function deleteInvitation(db: Db, id: string): Promise<void> {
  await db.deleteFrom("team_invitations").where("id", "=", id).execute();
}

export async function deleteExpiredInvitations(db: Db, teamId: string, now: Date): Promise<void> {
  await db
    .deleteFrom("team_invitations")
    .where("workspace_id", "=", teamId)
    .where("expires_at", "<=", now)
    .execute();
}

export async function emailOf(db: Db, userId: string): Promise<string> {
  const { email } = await db
    .selectFrom("users")
    .select("email")
    .where("id", "=", userId)
    .executeTakeFirstOrThrow();
  return email;
}

/** Returns the personal workspace of the person with this address. Undefined if the address has no account. */
export async function findPersonalWorkspace(db: Db, email: string): Promise<string | undefined> {
  const row = await db
    .selectFrom("workspaces as w")
    .innerJoin("users as u", "u.id", "w.owner_user_id")
    .select("w.id")
    .where("u.email", "=", email)
    .executeTakeFirst();
  return row?.id;
}
