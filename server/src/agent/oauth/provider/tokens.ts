/** Sends requests to a provider's token endpoint with the official client, and checks the responses. */
import {
  exchangeAuthorization,
  IssuerMismatchError,
  OAuthError,
  refreshAuthorization,
  type OAuthTokens,
} from "@modelcontextprotocol/client";
import type { App } from "#app.ts";
import { SignInFault } from "./sign-in-fault.ts";
import { providerFetch } from "./provider-fetch.ts";
import { metadataOf, type Provider } from "./metadata.ts";

export interface Client {
  client_id: string;
  client_secret?: string;
  token_endpoint_auth_method: AuthMethod;
}

export type AuthMethod = "client_secret_basic" | "client_secret_post" | "none";

export interface Tokens {
  access_token: string;
  refresh_token: string | null;
  scope: string | null;
  /** Lifetime of the access token in seconds. Null if the provider named none. */
  lifeSeconds: number | null;
}

/** Characters that a token may contain: tokens go into a header unencoded. */
const tokenForm = /^[\x21-\x7e]{1,16384}$/;
const tenYearsSeconds = 10 * 365 * 86_400;

/** Exchanges the code of a redirect for tokens. Throws a `SignInFault`. */
export async function exchangeCode(
  app: Pick<App, "config">,
  at: { provider: Provider; client: Client; resource: string | null },
  answer: { code: string; iss: string | null; verifier: string; redirectUri: string },
): Promise<Tokens> {
  return requestTokens(at.provider, () =>
    exchangeAuthorization(at.provider.issuer, {
      ...common(app, at),
      authorizationCode: answer.code,
      ...(answer.iss === null ? {} : { iss: answer.iss }),
      codeVerifier: answer.verifier,
      redirectUri: answer.redirectUri,
    }),
  );
}

/**
 * Refreshes the tokens of a connection. Throws a `SignInFault`. If its code is `invalid_grant`, no retry can succeed.
 */
export async function refreshTokens(
  app: Pick<App, "config">,
  at: { provider: Provider; client: Client; resource: string | null },
  refreshToken: string,
): Promise<Tokens> {
  return requestTokens(at.provider, () =>
    refreshAuthorization(at.provider.issuer, { ...common(app, at), refreshToken }),
  );
}

/** Revokes the refresh token, and with it the access tokens (RFC 7009, section 2.1). Throws a `SignInFault`. */
export async function revoke(
  app: Pick<App, "config">,
  { provider, client }: { provider: Provider; client: Client },
  tokens: Pick<Tokens, "access_token" | "refresh_token">,
): Promise<void> {
  if (provider.revocation_endpoint === undefined) return;
  const body = new URLSearchParams({
    token: tokens.refresh_token ?? tokens.access_token,
    token_type_hint: tokens.refresh_token === null ? "access_token" : "refresh_token",
  });
  const headers = new Headers({ "content-type": "application/x-www-form-urlencoded" });
  authenticate(client, headers, body);
  const { status } = await providerFetch(app, provider.issuer)(provider.revocation_endpoint, {
    method: "POST",
    headers,
    body,
  });
  // Any other refusal is permanent, so a retry is useless.
  if (status >= 500 || status === 429)
    throw new SignInFault(`${provider.issuer} returned ${status} for a revocation.`);
}

function common(
  app: Pick<App, "config">,
  { provider, client, resource }: { provider: Provider; client: Client; resource: string | null },
) {
  return {
    metadata: metadataOf(provider),
    clientInformation: { client_id: client.client_id },
    addClientAuthentication: (headers: Headers, body: URLSearchParams) => authenticate(client, headers, body),
    fetchFn: providerFetch(app, provider.issuer),
    ...(resource === null ? {} : { resource }),
  };
}

/**
 * Adds the client's id and secret to a request. Encodes both parts before joining them (RFC 6749, section 2.3.1), which
 * the official client does not do.
 */
function authenticate(client: Client, headers: Headers, body: URLSearchParams): void {
  const { client_id, client_secret, token_endpoint_auth_method: method } = client;
  if (method === "client_secret_basic" && client_secret !== undefined) {
    const pair = `${encodeURIComponent(client_id)}:${encodeURIComponent(client_secret)}`;
    headers.set("authorization", `Basic ${Buffer.from(pair).toString("base64")}`);
    return;
  }
  body.set("client_id", client_id);
  if (method === "client_secret_post" && client_secret !== undefined)
    body.set("client_secret", client_secret);
}

async function requestTokens({ issuer }: Provider, ask: () => Promise<OAuthTokens>): Promise<Tokens> {
  try {
    return checkTokens(await ask(), issuer);
  } catch (error) {
    if (error instanceof SignInFault) throw error;
    if (error instanceof IssuerMismatchError)
      throw new SignInFault("The response is from another issuer than the provider of this sign-in.", {
        cause: error,
      });
    // The error's text may contain parts of the request, so only a well-formed code is kept.
    const code = error instanceof OAuthError && /^[a-z_]{1,64}$/.test(error.code) ? error.code : undefined;
    if (code === undefined || code === "server_error")
      throw new SignInFault(`${issuer} returned an invalid response.`);
    throw new SignInFault(`${issuer} returned the error ${code}.`, { code });
  }
}

function checkTokens(tokens: OAuthTokens, issuer: string): Tokens {
  const { access_token, refresh_token, token_type, scope, expires_in } = tokens;
  const isUsable =
    /^bearer$/i.test(token_type) &&
    tokenForm.test(access_token) &&
    (refresh_token === undefined || tokenForm.test(refresh_token));
  if (!isUsable) throw new SignInFault(`${issuer} issued tokens of an unsupported type.`);
  const seconds = Number(expires_in);
  return {
    access_token,
    refresh_token: refresh_token ?? null,
    scope: scope === undefined ? null : scope.slice(0, 4096).replaceAll("\0", ""),
    lifeSeconds:
      expires_in === undefined || !Number.isFinite(seconds)
        ? null
        : Math.min(Math.max(0, seconds), tenYearsSeconds),
  };
}
