/**
 * Handles the provider's redirect back to this server. The cookie proves the browser, `state` selects the link, and
 * `iss` identifies the provider (RFC 9207). All three are checked, and the link is marked as used, before the code is
 * exchanged.
 */
import { validateAuthorizationResponseIssuer } from "@modelcontextprotocol/client";
import { recordActivity, systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import type { Db } from "#schema.ts";
import { newId } from "#lib/ids.ts";
import { passKillPoint } from "#lib/kill-points.ts";
import { findById } from "#agent/toolsets/find.ts";
import { target } from "#agent/toolsets/toolsets.ts";
import { redirectUri } from "../provider/clients.ts";
import { SignInFault } from "../provider/sign-in-fault.ts";
import { queueRevocations } from "../revocation.ts";
import { hashSecret } from "./links.ts";
import { cookieName, isOpener, LinkError, openPendingAuthorization, requireUsableLink } from "./open-link.ts";
import type { Provider } from "../provider/metadata.ts";
import { sealTokens } from "../token-encryption.ts";
import {
  findLink,
  deleteRegisteredClient,
  lockToolsetForShare,
  type LinkRow,
  lockLink,
  putConnection,
  markLinkUsed,
} from "../store.ts";
import { exchangeCode, type Client, type Tokens } from "../provider/tokens.ts";
import { owner, type SignInToolset } from "./sign-in-subject.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export interface CallbackResult {
  toolset: string;
  /** Reason why the sign-in failed. Null after success. */
  fault: SignInFault | null;
  returnUrl: string | null;
  /** Name of the link's cookie, which the caller deletes. */
  cookieName: string;
}

/** Completes a sign-in. Throws a `LinkError` unless the cookie proves that this browser opened the link. */
export async function handleCallback(
  app: Needs,
  query: URLSearchParams,
  cookies: ReadonlyMap<string, string>,
): Promise<CallbackResult> {
  const state = query.get("state") ?? "";
  const link = state === "" ? undefined : await findLink(app.db, { state_hash: hashSecret(state) });
  if (!link) throw new LinkError(400, "No sign-in in progress matches this address. Request a new link.");
  if (!isOpener(link, cookies))
    throw new LinkError(400, "This sign-in began in another browser. Open the link in this browser.");
  requireUsableLink(app, link);
  const toolset = await findById(app.db, link.toolset_id);
  if (!toolset || !(await markLinkUsed(app.db, hashSecret(state), app.clock.now())))
    throw new LinkError(410, "This link is already used. Request a new one.");
  await passKillPoint("agent.connect.used");
  const fault = await completeSignIn(app, toolset, link, query).then(
    () => null,
    (error: unknown) => {
      if (error instanceof SignInFault) return error;
      throw error;
    },
  );
  return { toolset: toolset.name, fault, returnUrl: link.return_url, cookieName: cookieName(link) };
}

async function completeSignIn(
  app: Needs,
  toolset: SignInToolset,
  link: LinkRow,
  query: URLSearchParams,
): Promise<void> {
  const provider = link.provider!;
  requireIssuer(provider, query.get("iss"));
  const refusal = query.get("error");
  if (refusal !== null) {
    const code = /^[a-z_]{1,64}$/.test(refusal) ? refusal : "error";
    throw new SignInFault(`The provider returned the error ${code}.`, { code });
  }
  const { verifier, client } = openPendingAuthorization(app, link);
  const { resource } = link;
  const tokens = await exchangeCode(
    app,
    { provider, client, resource },
    {
      code: query.get("code") ?? "",
      iss: query.get("iss"),
      verifier,
      redirectUri: redirectUri(app.config),
    },
  ).catch(async (error: unknown) => {
    // The next sign-in registers a new client.
    if (error instanceof SignInFault && error.code === "invalid_client")
      await deleteRegisteredClient(app.db, toolset.id, client.client_id);
    throw error;
  });
  await passKillPoint("agent.connect.exchanged");
  await app.db.transaction().execute((tx) => storeConnection(app, tx, toolset, link, { client, tokens }));
}

function requireIssuer(provider: Provider, iss: string | null): void {
  try {
    validateAuthorizationResponseIssuer({
      iss: iss ?? undefined,
      expectedIssuer: provider.issuer,
      issParameterSupported: provider.authorization_response_iss_parameter_supported === true,
    });
  } catch (error) {
    throw new SignInFault("The response is from another issuer than the provider of this sign-in.", {
      cause: error,
    });
  }
}

async function storeConnection(
  app: Needs,
  tx: Db,
  toolset: SignInToolset,
  link: LinkRow,
  { client, tokens }: { client: Client; tokens: Tokens },
): Promise<void> {
  const id = newId("con_");
  const now = app.clock.now();
  const { access_token, refresh_token, lifeSeconds } = tokens;
  const sealed = sealTokens(app, id, { access_token, refresh_token, client });
  const provider = link.provider!;
  // During the exchange, the toolset may have been deleted or moved to another origin, or the end user erased.
  const isWanted = (await lockToolsetForShare(tx, toolset.id)) && (await lockLink(tx, link.nonce_hash));
  if (!isWanted) return queueRevocations(tx, [{ id, sealed, provider }]);
  await putConnection(tx, {
    id,
    toolset_id: toolset.id,
    end_user_id: link.end_user_id,
    status: "connected",
    scope: tokens.scope ?? link.scope,
    expires_at: lifeSeconds === null ? null : new Date(now.getTime() + lifeSeconds * 1000),
    connected_at: now,
    sealed,
    provider: JSON.stringify(provider),
    resource: link.resource,
    refreshing_until: null,
  });
  const detail = { of: link.end_user_id === owner ? "owner" : "end_user" };
  const actor = systemActor("sign-in");
  await recordActivity(tx, actor, "agent_connection.created", target(toolset), toolset.workspace_id, detail);
}
