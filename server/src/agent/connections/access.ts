/** A token for whoever calls a toolset on somebody's behalf, or what has to happen before there is one. */
import type { App } from "#app.ts";
import { Refreshed, refresh } from "./refresh.ts";
import { openTokens } from "./sealed.ts";
import { expireConnection, findConnection } from "./store.ts";
import { owner, type SignInToolset } from "./toolset.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export type Access =
  | { kind: "token"; token: string; connection: string }
  /** Of an end user; `askToSignIn` says where. */
  | { kind: "auth_required"; who: string }
  | { kind: "unavailable"; why: string };

/**
 * `endUserId` null: nobody in particular, which is the owner, who is not asked to sign in by a run: it is begun, and its
 * events are read, by callers who may not say as whom an account acts.
 */
export async function accessFor(
  app: Needs,
  toolset: SignInToolset,
  endUserId: string | null,
): Promise<Access> {
  const who = whoOf(toolset, endUserId);
  const row = await findConnection(app.db, toolset.id, who);
  if (!row || row.status === "needs_reauth") return unsigned(who);
  const outcome = await refresh(app, row);
  if (outcome instanceof Refreshed) {
    const { token, connection } = outcome;
    return { kind: "token", token, connection };
  }
  return outcome === "needs_reauth" ? unsigned(who) : { kind: "unavailable", why: outcome.message };
}

/** A server took the token for none: the next `accessFor` has a newer one, or asks for a sign-in. */
export async function tokenRefused(
  app: Needs,
  toolset: SignInToolset,
  endUserId: string | null,
  token: string,
): Promise<void> {
  const row = await findConnection(app.db, toolset.id, whoOf(toolset, endUserId));
  if (row?.status !== "connected" || openTokens(app, row.id, row.sealed).access_token !== token) return;
  await expireConnection(app.db, row.id, app.clock.now());
}

function whoOf({ oauth_per_end_user }: SignInToolset, endUserId: string | null): string {
  return oauth_per_end_user && endUserId !== null ? endUserId : owner;
}

function unsigned(who: string): Access {
  if (who !== owner) return { kind: "auth_required", who };
  const why = "its owner has to sign in to it: open the link of the toolset's oauth/start";
  return { kind: "unavailable", why };
}
