/**
 * Opens a sign-in link: sets a secret cookie in the browser, and redirects the browser to the provider. From then on,
 * only this browser may open the link, any number of times until the provider redirects back.
 */
import { randomBytes, timingSafeEqual } from "node:crypto";
import { startAuthorization } from "@modelcontextprotocol/client";
import type { App } from "#app.ts";
import { findById } from "#agent/toolsets/find.ts";
import { selectClient, redirectUri } from "../provider/clients.ts";
import { discoverProvider } from "../provider/discovery.ts";
import { SignInFault } from "../provider/sign-in-fault.ts";
import { hashSecret, linkSeconds } from "./links.ts";
import { metadataOf } from "../provider/metadata.ts";
import { joinScopes } from "../provider/scopes.ts";
import { findConnection, findLink, clearRequiredScopes, type LinkRow, markLinkOpened } from "../store.ts";
import type { Client } from "../provider/tokens.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

/** Thrown for a link that cannot be used. The message is for the person who opened the link. */
export class LinkError extends Error {
  override readonly name = "LinkError";
  readonly status: number;

  constructor(status: number, message: string) {
    super(message);
    this.status = status;
  }
}

export interface AuthorizationRedirect {
  /** Authorization URL of the provider. */
  location: string;
  cookie: { name: string; value: string; lifeSeconds: number };
}

/**
 * State of a sign-in between the opening of its link and the callback. The link's row contains this state encrypted.
 */
export interface PendingAuthorization {
  verifier: string;
  client: Client;
}

/** Opens a link and returns the redirect to the provider. Throws a `LinkError` or a `SignInFault`. */
export async function openLink(
  app: Needs,
  nonce: string,
  cookies: ReadonlyMap<string, string>,
): Promise<AuthorizationRedirect> {
  const nonceHash = hashSecret(nonce);
  const link = await findLink(app.db, { nonce_hash: nonceHash });
  if (!link) throw new LinkError(404, "This link does not exist. Request a new one.");
  requireUsableLink(app, link);
  if (link.cookie_hash !== null && !isOpener(link, cookies))
    throw new LinkError(410, "This link is already used. Request a new one.");
  const toolset = await findById(app.db, link.toolset_id);
  if (!toolset) throw new LinkError(404, "This link does not exist. Request a new one.");
  const plan = await discoverProvider(app, toolset);
  const { provider, resource } = plan;
  const client = await selectClient(app, toolset, provider);
  const connection = await findConnection(app.db, toolset.id, link.end_user_id);
  const wanted = joinScopes(connection?.wanted, link.wanted);
  // The request also names the scopes granted before, so that they are not lost. The newly required scopes are first in
  // the list, because a long list is truncated.
  const scope = wanted === null ? plan.scope : joinScopes(wanted, plan.scope, connection?.scope);
  const state = randomBytes(32).toString("base64url");
  const { authorizationUrl, codeVerifier } = await createAuthorizationRequest(
    { provider, resource, scope },
    client,
    {
      state,
      redirectUrl: redirectUri(app.config),
    },
  );
  const secret = randomBytes(32).toString("base64url");
  const now = app.clock.now();
  const underway: PendingAuthorization = { verifier: codeVerifier, client };
  const isOurs = await app.db.transaction().execute(async (tx) => {
    const isOpened = await markLinkOpened(tx, link, {
      expires_at: new Date(now.getTime() + linkSeconds * 1000),
      opened_at: now,
      cookie_hash: hashSecret(secret),
      state_hash: hashSecret(state),
      sealed: app.secrets.seal(JSON.stringify(underway), linkPlace(nonceHash)),
      provider: JSON.stringify(provider),
      resource,
      scope,
      wanted,
    });
    // A provider may refuse these scopes on its own page without a redirect. The next link then requests none of these
    // scopes.
    if (isOpened && connection) await clearRequiredScopes(tx, connection);
    return isOpened;
  });
  if (!isOurs) throw new LinkError(410, "This link is already used. Request a new one.");
  return {
    location: authorizationUrl.href,
    cookie: { name: cookieName(link), value: secret, lifeSeconds: linkSeconds },
  };
}

export function openPendingAuthorization(app: Pick<App, "secrets">, link: LinkRow): PendingAuthorization {
  return JSON.parse(
    app.secrets.open(link.sealed!, linkPlace(link.nonce_hash)).toString("utf8"),
  ) as PendingAuthorization;
}

export function requireUsableLink({ clock }: Pick<App, "clock">, link: LinkRow): void {
  if (link.used_at !== null) throw new LinkError(410, "This link is already used. Request a new one.");
  if (link.expires_at <= clock.now()) throw new LinkError(410, "This link has expired. Request a new one.");
}

/**
 * Returns the name of the link's cookie. Each link has its own cookie, so that two sign-ins in one browser do not
 * conflict.
 */
export function cookieName({ nonce_hash }: Pick<LinkRow, "nonce_hash">): string {
  return `kontor_connect_${nonce_hash.toString("hex").slice(0, 12)}`;
}

export function isOpener(link: LinkRow, cookies: ReadonlyMap<string, string>): boolean {
  const given = cookies.get(cookieName(link));
  return (
    given !== undefined && link.cookie_hash !== null && timingSafeEqual(hashSecret(given), link.cookie_hash)
  );
}

async function createAuthorizationRequest(
  plan: Awaited<ReturnType<typeof discoverProvider>>,
  client: Client,
  { state, redirectUrl }: { state: string; redirectUrl: string },
): Promise<{ authorizationUrl: URL; codeVerifier: string }> {
  try {
    return await startAuthorization(plan.provider.issuer, {
      metadata: metadataOf(plan.provider),
      clientInformation: { client_id: client.client_id },
      redirectUrl,
      state,
      ...(plan.scope === null ? {} : { scope: plan.scope }),
      ...(plan.resource === null ? {} : { resource: plan.resource }),
    });
  } catch (error) {
    throw new SignInFault(
      `${plan.provider.issuer} does not support the authorization request of OAuth 2.1.`,
      {
        cause: error,
      },
    );
  }
}

function linkPlace(nonceHash: Buffer): string {
  return `agent_connect_links:${nonceHash.toString("hex")}:underway`;
}
