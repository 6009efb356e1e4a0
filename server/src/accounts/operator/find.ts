/** Finds people and teams for operator commands: by e-mail address, by a team's id, or by a unique team name. */
import type { Db } from "#schema.ts";
import { defineError } from "#lib/errors.ts";
import { teamNotFound } from "../teams/teams.ts";
import { userNotFound } from "../users/users.ts";

const teamNameAmbiguous = defineError(
  "team_name_ambiguous",
  409,
  (name: string, ids: readonly string[]) =>
    `Several teams are called ${name}: use an id instead (${ids.join(", ")}).`,
);

export async function requireUser(db: Db, email: string): Promise<{ id: string; email: string }> {
  const user = await db
    .selectFrom("users")
    .select(["id", "email"])
    .where("email", "=", email.toLowerCase())
    .executeTakeFirst();
  if (!user) throw userNotFound(email);
  return user;
}

export async function requireTeam(db: Db, nameOrId: string): Promise<{ id: string; name: string }> {
  const teams = await db
    .selectFrom("workspaces")
    .select(["id", "name"])
    .where("kind", "=", "team")
    .where((where) =>
      where.or([
        where("name", "=", nameOrId),
        where(where.cast<string>("id", "text"), "=", nameOrId.toLowerCase()),
      ]),
    )
    .execute();
  const [team] = teams;
  if (!team) throw teamNotFound();
  if (teams.length > 1)
    throw teamNameAmbiguous(
      nameOrId,
      teams.map(({ id }) => id),
    );
  return team;
}

/** Returns a person's personal workspace, or a team's workspace. */
export async function requireWorkspaceOf(db: Db, whose: string): Promise<{ id: string; label: string }> {
  if (!whose.includes("@")) {
    const { id, name } = await requireTeam(db, whose);
    return { id, label: name };
  }
  const user = await requireUser(db, whose);
  const { id } = await db
    .selectFrom("workspaces")
    .select("id")
    .where("owner_user_id", "=", user.id)
    .executeTakeFirstOrThrow();
  return { id, label: user.email };
}
