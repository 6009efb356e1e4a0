/** People: an e-mail address, a password, and from the first moment a personal workspace of their own. */
import { transaction } from "#db/db.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor, Plan, SandboxTier } from "../actor.ts";
import { recordActivity } from "../activity/activity.ts";
import { forgetActors } from "../find-actor.ts";
import { hashPassword } from "../passwords.ts";

export const emailTaken = defineError(
  "email_taken",
  409,
  (email: string) => `There is an account for ${email} already.`,
);
export const userNotFound = defineError(
  "user_not_found",
  404,
  (email: string) => `There is no account for ${email}.`,
);

export interface NewUser {
  email: string;
  name: string;
  password: string;
  isOperator?: boolean;
  plan?: Plan;
  sandboxTier?: SandboxTier;
}

export interface CreatedUser {
  userId: string;
  workspaceId: string;
}

export async function createUser(
  { db }: Pick<App, "db">,
  actor: Actor,
  input: NewUser,
): Promise<CreatedUser> {
  const email = input.email.toLowerCase();
  const passwordHash = await hashPassword(input.password);
  return transaction(db, async (tx) => {
    const user = await tx
      .insertInto("users")
      .values({
        email,
        name: input.name,
        password_hash: passwordHash,
        is_operator: input.isOperator ?? false,
      })
      .onConflict((conflict) => conflict.column("email").doNothing())
      .returning("id")
      .executeTakeFirst();
    if (!user) throw emailTaken(email);
    const workspace = await tx
      .insertInto("workspaces")
      .values({
        kind: "personal",
        owner_user_id: user.id,
        name: input.name,
        plan: input.plan ?? "starter",
        sandbox_tier: input.sandboxTier ?? "free",
        suspended_at: null,
      })
      .returning("id")
      .executeTakeFirstOrThrow();
    await recordActivity(
      tx,
      actor,
      "user.created",
      { kind: "user", id: user.id, label: email },
      workspace.id,
    );
    return { userId: user.id, workspaceId: workspace.id };
  });
}

/** Ends every sign-in of the user too: whoever knew the old password is out. Tokens stay: programs hold them. */
export async function resetPassword(
  app: Pick<App, "db">,
  actor: Actor,
  email: string,
  password: string,
): Promise<void> {
  const passwordHash = await hashPassword(password);
  await transaction(app.db, async (tx) => {
    const user = await tx
      .updateTable("users")
      .set({ password_hash: passwordHash })
      .where("email", "=", email.toLowerCase())
      .returning(["id", "email"])
      .executeTakeFirst();
    if (!user) throw userNotFound(email);
    await tx.deleteFrom("sessions").where("user_id", "=", user.id).execute();
    const workspace = await tx
      .selectFrom("workspaces")
      .select("id")
      .where("owner_user_id", "=", user.id)
      .executeTakeFirstOrThrow();
    await recordActivity(
      tx,
      actor,
      "user.password_reset",
      { kind: "user", id: user.id, label: user.email },
      workspace.id,
    );
  });
  forgetActors(app);
}

export interface UserSummary {
  id: string;
  email: string;
  name: string;
  is_operator: boolean;
  plan: Plan;
  sandbox_tier: SandboxTier;
  suspended: boolean;
  created_at: string;
}

export async function listUsers({ db }: Pick<App, "db">): Promise<UserSummary[]> {
  const rows = await db
    .selectFrom("users as u")
    .innerJoin("workspaces as w", "w.owner_user_id", "u.id")
    .select([
      "u.id",
      "u.email",
      "u.name",
      "u.is_operator",
      "u.created_at",
      "w.plan",
      "w.sandbox_tier",
      "w.suspended_at",
    ])
    .orderBy("u.created_at")
    .execute();
  return rows.map(({ suspended_at, created_at, ...row }) => ({
    ...row,
    suspended: suspended_at !== null,
    created_at: created_at.toISOString(),
  }));
}
