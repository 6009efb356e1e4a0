/**
 * Selects the OAuth client for a provider. A client that the toolset names is used first. Otherwise the client id is
 * the URL of our client metadata document, if the provider supports such documents. Otherwise a client is registered
 * dynamically, once per toolset.
 */
import { registerClient, RegistrationRejectedError } from "@modelcontextprotocol/client";
import type { App } from "#app.ts";
import { baseUrl, type Config } from "#config.ts";
import { isLoopback } from "#lib/network/addresses.ts";
import { openClientSecret } from "#agent/toolsets/calls/secrets.ts";
import { SignInFault } from "./sign-in-fault.ts";
import { providerFetch } from "./provider-fetch.ts";
import { metadataOf, type Provider } from "./metadata.ts";
import { findClient, pinClient, putClient } from "../store.ts";
import type { AuthMethod, Client } from "./tokens.ts";
import type { SignInToolset } from "../flow/sign-in-subject.ts";

type Needs = Pick<App, "db" | "config" | "secrets" | "clock">;

export const sitePrefix = "/connect/";
export const callbackPath = `${sitePrefix}callback`;
export const documentPath = `${sitePrefix}client.json`;

export function publicBase(config: Pick<Config, "publicUrl" | "port">): string {
  return (config.publicUrl ?? baseUrl(config)).replace(/\/+$/, "");
}

export function redirectUri(config: Pick<Config, "publicUrl" | "port">): string {
  return publicBase(config) + callbackPath;
}

/** Returns the client metadata for `documentPath` and for dynamic registration. */
function clientMetadata(config: Pick<Config, "publicUrl" | "port">) {
  return {
    client_name: "Kontor",
    redirect_uris: [redirectUri(config)],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
  };
}

/** Returns the client metadata document. The client id is the URL of the document. */
export function clientDocument(config: Pick<Config, "publicUrl" | "port">) {
  const client_id = publicBase(config) + documentPath;
  return { client_id, ...clientMetadata(config), token_endpoint_auth_method: "none" };
}

/** Returns the OAuth client for the provider. Throws a `SignInFault`. */
export async function selectClient(app: Needs, toolset: SignInToolset, provider: Provider): Promise<Client> {
  if (toolset.oauth_client_id !== null) {
    const secret = openClientSecret(app, toolset);
    const client_id = toolset.oauth_client_id;
    await requireItsProvider(app, toolset, client_id, provider);
    return secret === undefined
      ? { client_id, token_endpoint_auth_method: "none" }
      : { client_id, client_secret: secret, token_endpoint_auth_method: methodOf(provider, true) };
  }
  const base = new URL(publicBase(app.config));
  const isPublic = base.protocol === "https:" && !isLoopback(base.hostname);
  if (provider.client_id_metadata_document_supported === true && isPublic)
    return { client_id: clientDocument(app.config).client_id, token_endpoint_auth_method: "none" };
  if (provider.registration_endpoint === undefined) {
    throw new SignInFault(
      `${provider.issuer} does not support dynamic client registration. Register a client there ` +
        `with the redirect URI ${redirectUri(app.config)}, and create the toolset with its ` +
        "oauth_client_id.",
    );
  }
  return (await findRegisteredClient(app, toolset, provider)) ?? register(app, toolset, provider);
}

/**
 * Pins the client to the first provider. So the client's secret never goes to another provider that the tool server
 * names later. An update of the client's settings removes the pin.
 */
async function requireItsProvider(
  app: Needs,
  toolset: SignInToolset,
  clientId: string,
  { issuer }: Provider,
): Promise<void> {
  const pinned = await app.db.transaction().execute((tx) =>
    pinClient(tx, {
      toolset_id: toolset.id,
      issuer,
      redirect_uri: redirectUri(app.config),
      client_id: clientId,
      sealed: app.secrets.seal(JSON.stringify({ client_id: clientId }), place(toolset.id)),
      expires_at: null,
    }),
  );
  if (pinned === issuer) return;
  throw new SignInFault(
    "The tool server now names another provider than the client's. To accept the new provider, " +
      "send the toolset's oauth_client_id and oauth_client_secret again.",
  );
}

async function findRegisteredClient(
  app: Needs,
  toolset: SignInToolset,
  { issuer }: Provider,
): Promise<Client | undefined> {
  const row = await findClient(app.db, toolset.id);
  if (!row || row.issuer !== issuer || row.redirect_uri !== redirectUri(app.config)) return undefined;
  if (row.expires_at !== null && row.expires_at <= app.clock.now()) return undefined;
  return JSON.parse(app.secrets.open(row.sealed, place(toolset.id)).toString("utf8")) as Client;
}

async function register(app: Needs, toolset: SignInToolset, provider: Provider): Promise<Client> {
  const wanted = methodOf(provider, true);
  const isLocal = isLoopback(new URL(redirectUri(app.config)).hostname);
  const made = await registerClient(provider.issuer, {
    metadata: metadataOf(provider),
    clientMetadata: {
      ...clientMetadata(app.config),
      token_endpoint_auth_method: wanted,
      // Only native clients may use http redirect URIs on loopback (OpenID Connect Registration 1.0, section 2).
      application_type: isLocal ? "native" : "web",
    },
    fetchFn: providerFetch(app, toolset.workspace_id),
  }).catch((error: unknown) => {
    if (error instanceof SignInFault) throw error;
    const why = error instanceof RegistrationRejectedError ? "refused" : "returned an invalid response to";
    throw new SignInFault(`${provider.issuer} ${why} the registration of a client.`);
  });
  const client: Client = {
    client_id: made.client_id,
    ...(made.client_secret === undefined ? {} : { client_secret: made.client_secret }),
    token_endpoint_auth_method:
      made.client_secret === undefined ? "none" : asMethod(made.token_endpoint_auth_method, wanted),
  };
  const expires = made.client_secret_expires_at ?? 0;
  await putClient(app.db, {
    toolset_id: toolset.id,
    issuer: provider.issuer,
    redirect_uri: redirectUri(app.config),
    client_id: client.client_id,
    sealed: app.secrets.seal(JSON.stringify(client), place(toolset.id)),
    expires_at: expires > 0 ? new Date(expires * 1000) : null,
  });
  return client;
}

/**
 * Returns the client's authentication method. Prefers a client secret, because providers often rotate the refresh
 * tokens of public clients at each use.
 */
function methodOf(
  { token_endpoint_auth_methods_supported: taken }: Provider,
  hasSecret: boolean,
): AuthMethod {
  // RFC 8414, section 2, defines this default.
  const methods = taken ?? ["client_secret_basic"];
  const known: readonly AuthMethod[] = ["client_secret_basic", "client_secret_post"];
  return (hasSecret ? known.find((method) => methods.includes(method)) : undefined) ?? "none";
}

function asMethod(said: string | undefined, wanted: AuthMethod): AuthMethod {
  return said === "client_secret_basic" || said === "client_secret_post" || said === "none" ? said : wanted;
}

function place(toolsetId: string): string {
  return `agent_oauth_clients:${toolsetId}:client`;
}
