import { sql } from "kysely";
import type { Db } from "#db/db.ts";
import type { Plan, SandboxTier, TeamRole } from "../actor.ts";

export interface TeamRow {
  id: string;
  name: string;
  /** Of the one who asks; null where that is the operator from outside. */
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

/** Newest first; `ids` null means every team there is. */
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

/** In the order they joined. */
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

/** Held to the end of the transaction: two changes of one team's members happen one after the other. */
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
