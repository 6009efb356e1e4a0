/**
 * Deletes an account: the person, the personal workspace, sessions, tokens and invitations. Throws while the workspace
 * has resources, or while the person is a team's only owner. The audit log keeps the person's actions without the
 * address.
 */
import { sql } from "kysely";
import { transaction } from "#db/db.ts";
import type { Transaction } from "#schema.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { deletedLabel, recordActivity } from "../activity/activity.ts";
import { clearActorCache } from "../find-actor.ts";
import { type Holding, listHoldings } from "../holdings.ts";
import { isPassword } from "../passwords.ts";
import { passwordWrong, userNotFound } from "./users.ts";

export const accountNotEmpty = defineError("account_not_empty", 409, (left: readonly string[]) => ({
  detail: `The account still has ${left.join(", ")}. Delete them, then retry.`,
  meta: { left },
}));
export const accountOwnsTeams = defineError("account_owns_teams", 409, (teams: readonly string[]) => ({
  detail: `The account is the only owner of ${teams.join(", ")}. Make another member an owner or delete the team, then retry.`,
  meta: { teams },
}));
export const lastOperator = defineError(
  "last_operator",
  409,
  () =>
    "The account is the server's only operator. Create another one: kontor user create <email> --operator.",
);

interface DeletedUser {
  id: string;
  email: string;
  password_hash: string;
  is_operator: boolean;
  workspace_id: string;
}

/** Deletes the caller. Throws `password_wrong`, `account_not_empty`, `account_owns_teams`, `last_operator`. */
export async function deleteOwnAccount(
  app: Pick<App, "db">,
  actor: Actor,
  { password, holdings }: { password: string; holdings: readonly Holding[] },
): Promise<void> {
  const user = await app.db
    .selectFrom("users")
    .select("password_hash")
    .where("id", "=", actor.userId)
    .executeTakeFirst();
  // Another request has just deleted the account.
  if (!user) return;
  if (!(await isPassword(password, user.password_hash))) throw passwordWrong();
  await transaction(app.db, (tx) => deleteUser(tx, actor, { id: actor.userId, holdings }));
  clearActorCache(app);
}

/** Deletes a user by email address, for the operator. */
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
    if (!user || !(await deleteUser(tx, actor, { id: user.id, holdings }))) throw userNotFound(email);
  });
  clearActorCache(app);
}

/** Returns false if the user no longer exists. */
async function deleteUser(
  tx: Transaction,
  actor: Actor,
  { id, holdings }: { id: string; holdings: readonly Holding[] },
): Promise<boolean> {
  const user = await lockUser(tx, id);
  if (!user) return false;
  if (user.is_operator && (await countOperators(tx)) === 1) throw lastOperator();
  const teams = await teamsOnlyOwnedBy(tx, id);
  if (teams.length > 0) throw accountOwnsTeams(teams);
  const left = await listHoldings(tx, holdings, user.workspace_id);
  if (left.length > 0) throw accountNotEmpty(left);
  await recordActivity(tx, actor, "user.deleted", { kind: "user", id, label: deletedLabel }, null);
  await eraseAddress(tx, user);
  await tx.deleteFrom("team_invitations").where("email", "=", user.email).execute();
  // Foreign keys delete the workspace, sessions, tokens and memberships.
  await tx.deleteFrom("users").where("id", "=", id).execute();
  return true;
}

/** Locks the workspaces, so that until commit nothing is created in them and no team loses another owner. */
async function lockUser(tx: Transaction, id: string): Promise<DeletedUser | undefined> {
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
  // If two operators delete themselves at the same time, the second waits and is refused.
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
    .executeTakeFirst();
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

/** Removes the address and name from the audit log. The ids stay, so that entries of one person stay related. */
async function eraseAddress(tx: Transaction, user: DeletedUser): Promise<void> {
  await tx.updateTable("activity").set({ person_email: null }).where("person_id", "=", user.id).execute();
  await tx
    .updateTable("activity")
    .set({ actor_label: deletedLabel })
    .where("actor_id", "=", user.id)
    .execute();
  await tx
    .updateTable("activity")
    .set({ target_label: deletedLabel })
    .where((eb) =>
      eb.or([
        eb.and([eb("target_kind", "=", "user"), eb("target_id", "=", user.id)]),
        // A personal workspace has the name of its person.
        eb.and([eb("target_kind", "=", "workspace"), eb("target_id", "=", user.workspace_id)]),
        // Refused sign-ins and invitations have only the address.
        eb("target_label", "=", user.email),
      ]),
    )
    .execute();
}
