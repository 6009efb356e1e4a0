/** A token for whoever calls a toolset on somebody's behalf, or what has to happen before there is one. */
import type { App } from "#app.ts";
import { Refreshed, refresh } from "./provider/refresh.ts";
import { union } from "./provider/scopes.ts";
import { openTokens } from "./sealed.ts";
import { expireConnection, findConnection, lockConnection, putWanted } from "./store.ts";
import { owner, type SignInToolset } from "./flow/sign-in-subject.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export type Access = { kind: "token"; token: string; connection: string } | NoAccess;

export type NoAccess =
  /**
   * An end user must sign in; `askToSignIn` has the link. `isAgain`: the granted scopes are not enough. `connection`: id
   * of the connection with too few scopes, null if there is none.
   */
  | { kind: "auth_required"; who: string; isAgain: boolean; connection: string | null }
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
  if (!row || row.status === "needs_reauth") return unsigned(who, row?.id);
  const outcome = await refresh(app, row);
  if (outcome instanceof Refreshed) {
    const { token, connection } = outcome;
    return { kind: "token", token, connection };
  }
  return outcome === "needs_reauth" ? unsigned(who, row.id) : { kind: "unavailable", why: outcome.message };
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

/**
 * A server wants more than what the token was granted: the next sign-in asks for it. Until then the connection serves
 * what it is enough for. Undefined where the token is not the one there is by now.
 */
export async function moreWanted(
  app: Needs,
  toolset: SignInToolset,
  endUserId: string | null,
  { token, scope }: { token: string; scope: string },
): Promise<NoAccess | undefined> {
  const who = whoOf(toolset, endUserId);
  return app.db.transaction().execute(async (tx) => {
    const row = await lockConnection(tx, toolset.id, who);
    if (!row) return unsigned(who);
    if (openTokens(app, row.id, row.sealed).access_token !== token) return undefined;
    await putWanted(tx, row.id, union(scope, row.wanted));
    return unsigned(who, row.id, true);
  });
}

/** A sign-in is needed again, because the server accepts no token of this connection. */
export function askAnew(
  toolset: SignInToolset,
  endUserId: string | null,
  connection: string | null,
): NoAccess {
  return unsigned(whoOf(toolset, endUserId), connection, true);
}

function whoOf({ oauth_per_end_user }: SignInToolset, endUserId: string | null): string {
  return oauth_per_end_user && endUserId !== null ? endUserId : owner;
}

function unsigned(who: string, connection: string | null = null, isAgain = false): NoAccess {
  if (who !== owner) return { kind: "auth_required", who, isAgain, connection };
  const again = isAgain ? " again, because what they granted is not enough" : "";
  const why = `its owner has to sign in to it${again}: open the link of the toolset's oauth/start`;
  return { kind: "unavailable", why };
}
