/** A token for whoever calls a toolset on somebody's behalf, or what has to happen before there is one. */
import type { App } from "#app.ts";
import { hashOf, makeLink } from "./links.ts";
import { Refreshed, refresh } from "./refresh.ts";
import { openTokens } from "./sealed.ts";
import type { SignInLink } from "./schema.ts";
import { expireConnection, findConnection, findLink } from "./store.ts";
import { owner, type SignInToolset } from "./toolset.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export type Access =
  | { kind: "token"; token: string }
  | { kind: "auth_required"; authorizeUrl: string; expiresIn: number }
  | { kind: "unavailable"; why: string };

/**
 * `endUserId` null: nobody in particular, which is the owner. Who is not connected is given a link, the same one for as
 * long as it is new enough; the owner is given none here, since a run is begun, and its events are read, by callers who
 * may not say as whom an account acts.
 */
export async function accessFor(
  app: Needs,
  toolset: SignInToolset,
  endUserId: string | null,
): Promise<Access> {
  const who = whoOf(toolset, endUserId);
  const row = await findConnection(app.db, toolset.id, who);
  if (!row || row.status === "needs_reauth") return ask(app, toolset, who);
  const outcome = await refresh(app, row);
  if (outcome instanceof Refreshed) return { kind: "token", token: outcome.token };
  return outcome === "needs_reauth" ? ask(app, toolset, who) : { kind: "unavailable", why: outcome.message };
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

/** A step asks for its tools more than once, and a session for many steps: they need no link each. */
const links = new WeakMap<App["db"], Map<string, { link: SignInLink; endsAt: number }>>();
const linksMax = 10_000;
/** Of a link's life; a person still has to see it. */
const leftMinMs = 5 * 60 * 1000;

async function ask(app: Needs, toolset: SignInToolset, who: string): Promise<Access> {
  if (who === owner) {
    const why = "its owner has to sign in to it: open the link of the toolset's oauth/start";
    return { kind: "unavailable", why };
  }
  const known = links.get(app.db) ?? new Map<string, { link: SignInLink; endsAt: number }>();
  links.set(app.db, known);
  const key = JSON.stringify([toolset.id, who]);
  const now = app.clock.now().getTime();
  const earlier = known.get(key);
  if (earlier && earlier.endsAt - now >= leftMinMs && (await isUnopened(app, earlier.link))) {
    const expiresIn = Math.floor((earlier.endsAt - now) / 1000);
    return { kind: "auth_required", authorizeUrl: earlier.link.authorize_url, expiresIn };
  }
  const link = await makeLink(app, toolset, who, null);
  known.delete(key);
  known.set(key, { link, endsAt: now + link.expires_in * 1000 });
  const [oldest] = known.keys();
  if (known.size > linksMax && oldest !== undefined) known.delete(oldest);
  return { kind: "auth_required", authorizeUrl: link.authorize_url, expiresIn: link.expires_in };
}

async function isUnopened(app: Pick<App, "db">, { authorize_url }: SignInLink): Promise<boolean> {
  const nonce = authorize_url.slice(authorize_url.lastIndexOf("/") + 1);
  const link = await findLink(app.db, { nonce_hash: hashOf(nonce) });
  return link !== undefined && link.opened_at === null;
}
