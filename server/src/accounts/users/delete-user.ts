/**
 * Deletes an account: the person, the personal workspace, sessions, tokens and invitations. Refused while the workspace
 * holds anything that runs or that somebody built, and while a team would be left without an owner. The audit log keeps
 * what the person did, without the address.
 */
import { sql } from "kysely";
import { type Transaction, transaction } from "#db/db.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { recordActivity } from "../activity/activity.ts";
import { forgetActors } from "../find-actor.ts";
import { type Holding, leftInWorkspace } from "../holdings.ts";
import { isPassword } from "../passwords.ts";
import { passwordWrong, userNotFound } from "./users.ts";

export const accountNotEmpty = defineError("account_not_empty", 409, (left: readonly string[]) => ({
  detail: `The account still holds ${left.join(", ")}; delete them first.`,
  meta: { left },
}));
export const accountOwnsTeams = defineError("account_owns_teams", 409, (teams: readonly string[]) => ({
  detail: `The account is the only owner of ${teams.join(", ")}; make another member an owner, or delete the team, first.`,
  meta: { teams },
}));
export const lastOperator = defineError(
  "last_operator",
  409,
  () =>
    "This is the server's only operator; create another one first: kontor user create <email> --operator.",
);

/** In place of an address in the audit log. */
const deletedLabel = "deleted account";

interface DeletedUser {
  id: string;
  email: string;
  password_hash: string;
  is_operator: boolean;
  workspace_id: string;
}

/** The caller's own account. Throws `password_wrong`, `account_not_empty`, `account_owns_teams`, `last_operator`. */
export async function deleteOwnAccount(
  app: Pick<App, "db">,
  actor: Actor,
  { password, holdings }: { password: string; holdings: readonly Holding[] },
): Promise<void> {
  const { password_hash: hash } = await app.db
    .selectFrom("users")
    .select("password_hash")
    .where("id", "=", actor.userId)
    .executeTakeFirstOrThrow();
  if (!(await isPassword(password, hash))) throw passwordWrong();
  await transaction(app.db, (tx) => deleteUser(tx, actor, { id: actor.userId, holdings }));
  forgetActors(app);
}

/** The operator's way: by address. */
export async function deleteUserByEmail(
  app: Pick<App, "db">,
  actor: Actor,
  { email, holdings }: { email: string; holdings: readonly Holding[] },
): Promise<void> {
  await transaction(app.db, async (tx) => {
    const user = await tx
      .selectFrom("users")
      .select("id")
      .where("email", "=", email.toLowerCase())
      .executeTakeFirst();
    if (!user) throw userNotFound(email);
    await deleteUser(tx, actor, { id: user.id, holdings });
  });
  forgetActors(app);
}

async function deleteUser(
  tx: Transaction,
  actor: Actor,
  { id, holdings }: { id: string; holdings: readonly Holding[] },
): Promise<void> {
  const user = await lockUser(tx, id);
  if (user.is_operator && (await countOperators(tx)) === 1) throw lastOperator();
  const teams = await teamsOnlyOwnedBy(tx, id);
  if (teams.length > 0) throw accountOwnsTeams(teams);
  const left = await leftInWorkspace(tx, holdings, user.workspace_id);
  if (left.length > 0) throw accountNotEmpty(left);
  await recordActivity(tx, actor, "user.deleted", { kind: "user", id, label: deletedLabel }, null);
  await forgetAddress(tx, user);
  await tx.deleteFrom("team_invitations").where("email", "=", user.email).execute();
  // The workspace, sessions, tokens and memberships go with their person.
  await tx.deleteFrom("users").where("id", "=", id).execute();
}

/** Nothing is created in the workspace, and no team loses another owner, until the transaction ends. */
async function lockUser(tx: Transaction, id: string): Promise<DeletedUser> {
  await tx
    .selectFrom("workspaces")
    .select("id")
    .where((eb) =>
      eb.or([
        eb("owner_user_id", "=", id),
        eb("id", "in", eb.selectFrom("team_members").select("workspace_id").where("user_id", "=", id)),
      ]),
    )
    .orderBy("id")
    .forUpdate()
    .execute();
  // Of two operators who delete themselves at once, the second waits and is refused.
  await tx
    .selectFrom("users")
    .select("id")
    .where("is_operator", "=", true)
    .orderBy("id")
    .forUpdate()
    .execute();
  return tx
    .selectFrom("users")
    .innerJoin("workspaces", "workspaces.owner_user_id", "users.id")
    .select([
      "users.id",
      "users.email",
      "users.password_hash",
      "users.is_operator",
      "workspaces.id as workspace_id",
    ])
    .where("users.id", "=", id)
    .executeTakeFirstOrThrow();
}

async function countOperators(tx: Transaction): Promise<number> {
  const rows = await tx.selectFrom("users").select("id").where("is_operator", "=", true).execute();
  return rows.length;
}

async function teamsOnlyOwnedBy(tx: Transaction, id: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select w.name from team_members m join workspaces w on w.id = m.workspace_id
    where m.user_id = ${id}::uuid and m.role = 'owner' and not exists (
      select from team_members o
      where o.workspace_id = m.workspace_id and o.role = 'owner' and o.user_id <> m.user_id)
    order by w.name`.execute(tx);
  return rows.map(({ name }) => name);
}

/** The address and name leave the audit log; the ids stay, so that entries still belong together. */
async function forgetAddress(tx: Transaction, user: DeletedUser): Promise<void> {
  await tx.updateTable("activity").set({ person_email: null }).where("person_id", "=", user.id).execute();
  await tx
    .updateTable("activity")
    .set({ actor_label: deletedLabel })
    .where("actor_id", "=", user.id)
    .execute();
  await tx
    .updateTable("activity")
    .set({ target_label: deletedLabel })
    .where("target_kind", "=", "user")
    .where("target_id", "=", user.id)
    .execute();
}
