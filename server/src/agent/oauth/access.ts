/** Returns the access token for a call to a toolset, or the step that is missing before there is a token. */
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
   * An end user must sign in; `askToSignIn` makes the link. `isAgain`: the granted scopes do not suffice. `connection`:
   * id of the connection that lacks scopes, null if there is none.
   */
  | { kind: "auth_required"; who: string; isAgain: boolean; connection: string | null }
  | { kind: "unavailable"; why: string };

/**
 * `endUserId` null selects the owner. A run does not ask the owner to sign in, because callers who start runs and read
 * their events may lack the right to choose the owner's account.
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

/** Expires a token that a server refused. The next `accessFor` refreshes the token or requires a sign-in. */
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
 * Records scopes that a server requires beyond the granted scopes, so that the next sign-in requests them. Until then
 * the connection serves the other calls. Returns undefined if the connection has another token by now.
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

/** Requires a new sign-in, because the server accepts no token of this connection. */
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
  const again = isAgain ? '" again, because the granted scopes do not suffice"' : "";
  const why = `its owner has to sign in to it${again}: open the link of the toolset's oauth/start`;
  return { kind: "unavailable", why };
}
