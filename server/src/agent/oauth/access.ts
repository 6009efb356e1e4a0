/** Returns the access token for a call to a toolset, or the step that must come before a token exists. */
import type { App } from "#app.ts";
import { FreshToken, refreshIfStale } from "./provider/refresh.ts";
import { joinScopes } from "./provider/scopes.ts";
import { openTokens } from "./token-encryption.ts";
import { expireConnection, findConnection, lockConnection, setRequiredScopes } from "./store.ts";
import { owner, type SignInToolset } from "./flow/sign-in-subject.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export type Access = { kind: "token"; token: string; connection: string } | NoAccess;

export type NoAccess =
  /**
   * An end user must sign in; `offerSignIn` makes the link. `isAgain`: the granted scopes do not suffice. `connection`:
   * id of the connection that lacks scopes, or null if the user has no connection.
   */
  | { kind: "auth_required"; who: string; isAgain: boolean; connection: string | null }
  | { kind: "unavailable"; why: string };

/**
 * Returns the access of an end user, or of the owner if `endUserId` is null. A run offers the owner no sign-in link.
 * Otherwise callers who read the run's events could sign in with an account of their choice.
 */
export async function resolveAccess(
  app: Needs,
  toolset: SignInToolset,
  endUserId: string | null,
): Promise<Access> {
  const who = whoOf(toolset, endUserId);
  const row = await findConnection(app.db, toolset.id, who);
  if (!row || row.status === "needs_reauth") return requireSignIn(who, row?.id);
  const outcome = await refreshIfStale(app, row);
  if (outcome instanceof FreshToken) {
    const { token, connection } = outcome;
    return { kind: "token", token, connection };
  }
  return outcome === "needs_reauth"
    ? requireSignIn(who, row.id)
    : { kind: "unavailable", why: outcome.message };
}

/** Expires a token that a server refused. The next `resolveAccess` refreshes the token or requires a sign-in. */
export async function expireRefusedToken(
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
 * Records scopes that a server requires beyond the granted scopes, so that the next sign-in requests them. Until then,
 * the connection serves the other calls. Returns undefined if the connection got another token since the refusal.
 */
export async function recordRequiredScopes(
  app: Needs,
  toolset: SignInToolset,
  endUserId: string | null,
  { token, scope }: { token: string; scope: string },
): Promise<NoAccess | undefined> {
  const who = whoOf(toolset, endUserId);
  return app.db.transaction().execute(async (tx) => {
    const row = await lockConnection(tx, toolset.id, who);
    if (!row) return requireSignIn(who);
    if (openTokens(app, row.id, row.sealed).access_token !== token) return undefined;
    await setRequiredScopes(tx, row.id, joinScopes(scope, row.wanted));
    return requireSignIn(who, row.id, true);
  });
}

/** Returns the result that requires a new sign-in, because the server accepts no token of this connection. */
export function requireNewSignIn(
  toolset: SignInToolset,
  endUserId: string | null,
  connection: string | null,
): NoAccess {
  return requireSignIn(whoOf(toolset, endUserId), connection, true);
}

function whoOf({ oauth_per_end_user }: SignInToolset, endUserId: string | null): string {
  return oauth_per_end_user && endUserId !== null ? endUserId : owner;
}

function requireSignIn(who: string, connection: string | null = null, isAgain = false): NoAccess {
  if (who !== owner) return { kind: "auth_required", who, isAgain, connection };
  const again = isAgain ? " again, because the granted scopes do not suffice" : "";
  const why = `its owner has to sign in to it${again}: open the link of the toolset's oauth/start`;
  return { kind: "unavailable", why };
}
