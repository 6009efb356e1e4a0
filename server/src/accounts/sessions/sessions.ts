/**
 * Sign-in sessions of the console. A session's secret is like a token, but in a cookie instead of a header, and stored
 * as a hash. A session ends after two weeks, at sign-out, or with a password reset.
 */
import { sql } from "kysely";
import { transaction } from "#db/db.ts";
import { defineError } from "#lib/errors.ts";
import type { App } from "../../app.ts";
import type { Actor } from "../actor.ts";
import { accessLogOf, type WorkspacesOf } from "../activity/access-log.ts";
import { recordActivity, systemActor } from "../activity/activity.ts";
import { findActor, clearActorCache } from "../find-actor.ts";
import { isPassword, simulatePasswordCheck } from "../passwords.ts";
import { hashSecret, newSecret } from "../secrets.ts";

export const sessionSeconds = 14 * 86_400;

/** The same error for an unknown address and a wrong password, so that it reveals no accounts. */
export const signInRefused = defineError(
  "sign_in_refused",
  401,
  () => "The e-mail address or the password is wrong.",
);

export const sessionNotFound = defineError("session_not_found", 404, () => "No such session.");

type Needs = Pick<App, "db" | "clock" | "log">;

export interface SignIn {
  email: string;
  password: string;
  ip: string | null;
  userAgent: string | null;
}

export async function signIn(app: Needs, input: SignIn): Promise<{ secret: string; actor: Actor }> {
  const user = await findUser(app.db, input.email);
  const isRight = user
    ? await isPassword(input.password, user.password_hash)
    : await simulatePasswordCheck(input.password);
  if (!user || !isRight) {
    await recordRefusal(app, "session.refused", input, user?.id ?? null);
    throw signInRefused();
  }
  const secret = newSecret("kse_");
  const now = app.clock.now();
  await app.db
    .insertInto("sessions")
    .values({
      user_id: user.id,
      token_hash: hashSecret(secret),
      created_at: now,
      last_seen_at: now,
      expires_at: new Date(now.getTime() + sessionSeconds * 1000),
      user_agent: input.userAgent?.slice(0, 256) ?? null,
      ip: input.ip,
    })
    .execute();
  const actor = await findActor(app, { kind: "session", secret });
  if (!actor) throw new Error("a new session was not found");
  const target = { kind: "user", id: actor.userId, label: actor.label };
  const from = { ...actor, ip: input.ip };
  await recordActivity(app.db, from, "session.created", target, actor.workspaces[0]?.id ?? null);
  await app.db.deleteFrom("sessions").where("user_id", "=", user.id).where("expires_at", "<", now).execute();
  return { secret, actor: from };
}

/** Records a refused sign-in in the audit log, for the account's owner and the operator. */
export async function recordRefusal(
  app: Pick<App, "db" | "log">,
  action: "session.refused" | "session.limited",
  { email, ip }: { email: string; ip: string | null },
  userId?: string | null,
): Promise<void> {
  const id = userId === undefined ? ((await findUser(app.db, email))?.id ?? null) : userId;
  accessLogOf(app).note({
    actor: { ...systemActor("sign-in"), ip },
    action,
    // Text that is not an address may be a password in the wrong field.
    target: { kind: "user", id, label: /^[^@\s]+@[^@\s]+$/.test(email) ? email.toLowerCase() : null },
    workspace: personalWorkspacesOf,
    isAccess: false,
  });
}

const findUser = (db: App["db"], email: string) =>
  db
    .selectFrom("users")
    .select(["id", "password_hash"])
    .where("email", "=", email.toLowerCase())
    .executeTakeFirst();

const personalWorkspacesOf: WorkspacesOf = async (db, ids) => {
  const rows = await db
    .selectFrom("workspaces")
    .select(["id", "owner_user_id"])
    .where("owner_user_id", "=", sql<string>`any(${sql.val([...ids])}::uuid[])`)
    .execute();
  return rows.map(({ id, owner_user_id }) => ({ id: owner_user_id!, workspace_id: id }));
};

/** Ends the session. Succeeds if it has already ended. */
export async function signOut(app: Needs, actor: Actor, secret: string): Promise<void> {
  await transaction(app.db, async (tx) => {
    const gone = await tx
      .deleteFrom("sessions")
      .where("token_hash", "=", hashSecret(secret))
      .where("user_id", "=", actor.userId)
      .returning("id")
      .executeTakeFirst();
    if (!gone) return;
    const target = { kind: "user", id: actor.userId, label: actor.label };
    await recordActivity(tx, actor, "session.ended", target, actor.workspaces[0]?.id ?? null);
  });
  clearActorCache(app);
}

export interface SessionRecord {
  id: string;
  created_at: string;
  last_seen_at: string;
  expires_at: string;
  ip: string | null;
  user_agent: string | null;
  current: boolean;
}

/** Lists the person's unexpired sessions, newest first. `secret` belongs to the session that sent the request. */
export async function listSessions(
  app: Pick<App, "db" | "clock">,
  actor: Actor,
  secret: string | null,
): Promise<SessionRecord[]> {
  const rows = await app.db
    .selectFrom("sessions")
    .selectAll()
    .where("user_id", "=", actor.userId)
    .where("expires_at", ">", app.clock.now())
    .orderBy("created_at", "desc")
    .orderBy("id")
    .execute();
  const own = hashSecret(secret ?? "");
  return rows.map((row) => ({
    id: row.id,
    created_at: row.created_at.toISOString(),
    last_seen_at: row.last_seen_at.toISOString(),
    expires_at: row.expires_at.toISOString(),
    ip: row.ip,
    user_agent: row.user_agent,
    current: row.token_hash === own,
  }));
}

export async function endSession(app: Pick<App, "db">, actor: Actor, id: string): Promise<void> {
  await transaction(app.db, async (tx) => {
    const gone = await tx
      .deleteFrom("sessions")
      .where("id", "=", id)
      .where("user_id", "=", actor.userId)
      .returning("id")
      .executeTakeFirst();
    if (!gone) throw sessionNotFound();
    const target = { kind: "user", id: actor.userId, label: actor.label };
    await recordActivity(tx, actor, "session.ended", target, actor.workspaces[0]?.id ?? null);
  });
  clearActorCache(app);
}

/** Returns the caller and the workspaces it reaches, for the console and `whoami`. */
export async function describeCaller({ db }: Pick<App, "db">, actor: Actor) {
  const [user, names] = await Promise.all([
    db
      .selectFrom("users")
      .select(["id", "email", "name", "is_operator"])
      .where("id", "=", actor.userId)
      .executeTakeFirstOrThrow(),
    db
      .selectFrom("workspaces")
      .select(["id", "name"])
      .where("id", "=", sql<string>`any(${sql.val(actor.workspaces.map(({ id }) => id))}::uuid[])`)
      .execute(),
  ]);
  return {
    user,
    kind: actor.kind,
    scopes: actor.scopes,
    workspaces: actor.workspaces.map((workspace) => ({
      id: workspace.id,
      kind: workspace.kind,
      name: names.find(({ id }) => id === workspace.id)?.name ?? "",
      role: workspace.role,
      plan: workspace.plan,
      sandbox_tier: workspace.sandboxTier,
      suspended: workspace.suspended,
    })),
  };
}
