/** Makes the sign-in link that a run shows to its end user. */
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { hashSecret, makeLink } from "./links.ts";
import type { SignInLink } from "../schema.ts";
import { findLink, ToolsetDeleted } from "../store.ts";
import type { SignInToolset } from "./sign-in-subject.ts";

type Needs = Pick<App, "db" | "config" | "clock">;

/** Links for reuse: all steps of a session show the same link. */
const links = new WeakMap<App["db"], Map<string, { link: SignInLink; endsAt: number }>>();
const linksMax = 10_000;
/** Minimum of a reused link's remaining lifetime, in milliseconds, so that the person has time to open the link. */
const leftMinMs = 5 * 60 * 1000;

/**
 * Passes a link to `tell`, and reuses a recent link if there is one. `tell` runs `store` in a transaction that checks
 * that the run still exists. So an erased end user is not stored again. Returns false, without a link, if the toolset
 * was deleted meanwhile.
 */
export async function offerSignIn(
  app: Needs,
  toolset: Pick<SignInToolset, "id">,
  who: string,
  tell: (link: SignInLink, store: (tx: Db) => Promise<void>) => Promise<void>,
): Promise<boolean> {
  const known = links.get(app.db) ?? new Map<string, { link: SignInLink; endsAt: number }>();
  links.set(app.db, known);
  const key = JSON.stringify([toolset.id, who]);
  const now = app.clock.now().getTime();
  const earlier = known.get(key);
  if (earlier && earlier.endsAt - now >= leftMinMs && (await isUnopened(app, earlier.link))) {
    const expires_in = Math.floor((earlier.endsAt - now) / 1000);
    await tell({ ...earlier.link, expires_in }, async () => {});
    return true;
  }
  const { link, store } = makeLink(app, toolset, who, null);
  try {
    await tell(link, store);
  } catch (error) {
    if (error instanceof ToolsetDeleted) return false;
    throw error;
  }
  known.delete(key);
  known.set(key, { link, endsAt: now + link.expires_in * 1000 });
  const [oldest] = known.keys();
  if (known.size > linksMax && oldest !== undefined) known.delete(oldest);
  return true;
}

export async function isUnopened(
  app: Pick<App, "db">,
  { authorize_url }: Pick<SignInLink, "authorize_url">,
): Promise<boolean> {
  const nonce = authorize_url.slice(authorize_url.lastIndexOf("/") + 1);
  const link = await findLink(app.db, { nonce_hash: hashSecret(nonce) });
  return link !== undefined && link.opened_at === null;
}
