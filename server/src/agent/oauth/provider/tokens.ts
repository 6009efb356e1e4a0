/** What is asked of a token endpoint, by the official client, and what its answers come to. */
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
  /** Null: that was not said. */
  lifeSeconds: number | null;
}

/** Goes into a header as it is. */
const tokenForm = /^[\x21-\x7e]{1,16384}$/;
const tenYearsSeconds = 10 * 365 * 86_400;

/** Throws a `SignInFault`. */
export async function exchange(
  app: Pick<App, "config">,
  at: { provider: Provider; client: Client; resource: string | null },
  answer: { code: string; iss: string | null; verifier: string; redirectUri: string },
): Promise<Tokens> {
  return understood(at.provider, () =>
    exchangeAuthorization(at.provider.issuer, {
      ...common(app, at),
      authorizationCode: answer.code,
      ...(answer.iss === null ? {} : { iss: answer.iss }),
      codeVerifier: answer.verifier,
      redirectUri: answer.redirectUri,
    }),
  );
}

/** Throws a `SignInFault`; where its code is `invalid_grant`, nothing newer will ever be had. */
export async function refreshTokens(
  app: Pick<App, "config">,
  at: { provider: Provider; client: Client; resource: string | null },
  refreshToken: string,
): Promise<Tokens> {
  return understood(at.provider, () =>
    refreshAuthorization(at.provider.issuer, { ...common(app, at), refreshToken }),
  );
}

/** RFC 7009: with the refresh token go the others. Throws a `SignInFault`. */
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
  // What it refuses it will refuse again.
  if (status >= 500 || status === 429)
    throw new SignInFault(`${provider.issuer} answers ${status} to a revocation.`);
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

/** RFC 6749, 2.3.1: both parts are encoded before they are joined, which the official client leaves out. */
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

async function understood({ issuer }: Provider, ask: () => Promise<OAuthTokens>): Promise<Tokens> {
  try {
    return checked(await ask(), issuer);
  } catch (error) {
    if (error instanceof SignInFault) throw error;
    if (error instanceof IssuerMismatchError)
      throw new SignInFault("The answer is of another issuer than the one that was asked.", { cause: error });
    // Its text may hold what was sent; of its code only what is one.
    const code = error instanceof OAuthError && /^[a-z_]{1,64}$/.test(error.code) ? error.code : undefined;
    if (code === undefined || code === "server_error")
      throw new SignInFault(`The answer of ${issuer} was not understood.`);
    throw new SignInFault(`${issuer} answers ${code}.`, { code });
  }
}

function checked(tokens: OAuthTokens, issuer: string): Tokens {
  const { access_token, refresh_token, token_type, scope, expires_in } = tokens;
  const isUsable =
    /^bearer$/i.test(token_type) &&
    tokenForm.test(access_token) &&
    (refresh_token === undefined || tokenForm.test(refresh_token));
  if (!isUsable) throw new SignInFault(`${issuer} hands out tokens of a kind that can't be used here.`);
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
