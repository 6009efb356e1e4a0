/**
 * Creates the first account: the operator's, on the highest plan and tier, with a password and a full-access token that
 * are shown once. The account is created in one transaction and only if no account exists, so a second or concurrent
 * start creates nothing.
 */
import { transaction } from "#db/db.ts";
import { newId } from "#lib/ids.ts";
import type { App } from "../app.ts";
import { recordActivity, systemActor } from "./activity/activity.ts";
import { randomPassword } from "./passwords.ts";
import { hashSecret, newSecret } from "./secrets.ts";
import { createUser } from "./users/users.ts";

export interface OperatorSecrets {
  email: string;
  password: string;
  token: string;
}

/**
 * Creates the first account and returns its secrets. Undefined if an account already exists. `keep` stores the secrets
 * and runs before the commit. So the stored secrets exist whenever the account does, even if the process dies in
 * between.
 */
export async function bootstrapOperator(
  app: Pick<App, "db" | "clock" | "config">,
  keep: (secrets: OperatorSecrets) => Promise<void> = async () => undefined,
): Promise<OperatorSecrets | undefined> {
  return transaction(app.db, async (tx) => {
    await tx.selectFrom("installation").select("id").forUpdate().execute();
    if (await tx.selectFrom("users").select("id").limit(1).executeTakeFirst()) return undefined;
    const secrets = { email: app.config.operatorEmail, password: randomPassword(), token: newSecret("svc_") };
    const actor = systemActor("first start");
    const { userId, workspaceId } = await createUser({ db: tx }, actor, {
      email: secrets.email,
      name: "Operator",
      password: secrets.password,
      isOperator: true,
      plan: "team",
      sandboxTier: "enterprise",
    });
    const id = newId("tok_");
    await tx
      .insertInto("api_tokens")
      .values({
        id,
        user_id: userId,
        name: "operator",
        prefix: secrets.token.slice(0, 8),
        token_hash: hashSecret(secrets.token),
        created_at: app.clock.now(),
      })
      .execute();
    await recordActivity(
      tx,
      actor,
      "api_token.created",
      { kind: "api_token", id, label: "operator" },
      workspaceId,
    );
    await keep(secrets);
    return secrets;
  });
}
