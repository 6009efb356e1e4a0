/**
 * Creates the sign-in link of one person. The link works once, for ten minutes. Only the hash of its secret is stored.
 */
import { createHash, randomBytes } from "node:crypto";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { invalidField } from "#agent/errors.ts";
import { toolsetNotFound } from "#agent/toolsets/errors.ts";
import { getToolset, requireWritable } from "#agent/toolsets/toolsets.ts";
import { selectClient, publicBase, sitePrefix } from "../provider/clients.ts";
import { discoverProvider } from "../provider/discovery.ts";
import { noSignIn, signInUnavailable } from "../errors.ts";
import { SignInFault } from "../provider/sign-in-fault.ts";
import type { SignInLink, SignInStart } from "../schema.ts";
import { insertLink, ToolsetDeleted } from "../store.ts";
import { owner, type SignInToolset } from "./sign-in-subject.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export const linkSeconds = 600;
/** Time for which an expired link is kept, so that its page can explain the expiry. */
const rememberedMs = 24 * 60 * 60 * 1000;

export async function createSignInLink(
  app: Needs,
  actor: Actor,
  toolsetId: string,
  input: SignInStart,
): Promise<SignInLink> {
  const toolset = await getToolset(app.db, actor, toolsetId);
  requireWritable(actor, toolset);
  if (toolset.auth_type !== "oauth") throw noSignIn();
  const endUserId = input.end_user_id ?? owner;
  if (endUserId !== owner && !toolset.oauth_per_end_user)
    throw invalidField(
      ["end_user_id"],
      "must be absent, because the owner signs in to this toolset; set its oauth_per_end_user first",
    );
  try {
    // The provider is checked now, so that the caller gets an error, not the person with the link.
    const { provider } = await discoverProvider(app, toolset);
    await selectClient(app, toolset, provider);
  } catch (error) {
    throw error instanceof SignInFault ? signInUnavailable(error.message) : error;
  }
  const { link, store } = makeLink(app, toolset, endUserId, input.return_url ?? null);
  await app.db
    .transaction()
    .execute(store)
    .catch((error: unknown) => {
      throw error instanceof ToolsetDeleted ? toolsetNotFound() : error;
    });
  return link;
}

/** Makes a link and the function `store`, which stores it. The link works after `store` has run. */
export function makeLink(
  app: Pick<App, "config" | "clock">,
  toolset: Pick<SignInToolset, "id">,
  endUserId: string,
  returnUrl: string | null,
): { link: SignInLink; store: (tx: Db) => Promise<void> } {
  const nonce = randomBytes(24).toString("base64url");
  const now = app.clock.now();
  const store = (tx: Db) =>
    insertLink(
      tx,
      {
        nonce_hash: hashSecret(nonce),
        toolset_id: toolset.id,
        end_user_id: endUserId,
        return_url: returnUrl,
        created_at: now,
        expires_at: new Date(now.getTime() + linkSeconds * 1000),
      },
      new Date(now.getTime() - rememberedMs),
    );
  const link = { authorize_url: publicBase(app.config) + sitePrefix + nonce, expires_in: linkSeconds };
  return { link, store };
}

/**
 * Returns the hash of a secret. The database contains only this hash, so that a reader of the table cannot open a link.
 */
export function hashSecret(secret: string): Buffer {
  return createHash("sha256").update(secret).digest();
}
