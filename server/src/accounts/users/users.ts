/** People: an e-mail address, a password, and a personal workspace that is created with the account. */
import { sql } from "kysely";
import { transaction } from "#db/db.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import type { Plan, SandboxTier } from "../roles.ts";
import { recordActivity } from "../activity/activity.ts";
import { clearActorCache } from "../find-actor.ts";
import { hashPassword, isPassword } from "../passwords.ts";
import { hashSecret } from "../secrets.ts";

const emailTaken = defineError(
  "email_taken",
  409,
  (email: string) => `An account for ${email} already exists.`,
);
export const userNotFound = defineError(
  "user_not_found",
  404,
  (email: string) => `An account for ${email} does not exist.`,
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

export const passwordWrong = defineError(
  "password_wrong",
  403,
  () => "current_password: is not the password of this account; enter the password you signed in with.",
);

/** Changes the password and ends the person's other sessions. */
export async function changePassword(
  app: Pick<App, "db">,
  actor: Actor,
  input: { current: string; next: string; keptSession: string | null },
): Promise<void> {
  const { userId } = actor;
  const user = await app.db
    .selectFrom("users")
    .innerJoin("workspaces", "workspaces.owner_user_id", "users.id")
    .select(["users.email", "users.password_hash", "workspaces.id as workspace_id"])
    .where("users.id", "=", userId)
    .executeTakeFirstOrThrow();
  if (!(await isPassword(input.current, user.password_hash))) throw passwordWrong();
  const passwordHash = await hashPassword(input.next);
  await transaction(app.db, async (tx) => {
    await tx.updateTable("users").set({ password_hash: passwordHash }).where("id", "=", userId).execute();
    await tx
      .deleteFrom("sessions")
      .where("user_id", "=", userId)
      .where("token_hash", "<>", hashSecret(input.keptSession ?? ""))
      .execute();
    const target = { kind: "user", id: userId, label: user.email };
    await recordActivity(tx, actor, "user.password_changed", target, user.workspace_id);
  });
  clearActorCache(app);
}

/**
 * Sets the password and ends all sessions. Revokes all tokens too unless they are kept, because an intruder may have
 * either.
 */
export async function resetPassword(
  app: Pick<App, "db">,
  actor: Actor,
  email: string,
  password: string,
  options: { keepTokens?: boolean } = {},
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
    if (options.keepTokens !== true) {
      await tx
        .updateTable("api_tokens")
        .set({ revoked_at: sql<Date>`now()` })
        .where("user_id", "=", user.id)
        .where("revoked_at", "is", null)
        .execute();
    }
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
  clearActorCache(app);
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
