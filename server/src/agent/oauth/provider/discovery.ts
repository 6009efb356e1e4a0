/**
 * Discovers the provider (authorization server) of a toolset. A request without a token returns the address of the
 * server's protected resource metadata (RFC 9728). This metadata names the provider, whose own metadata must name the
 * same issuer (RFC 8414). A server without such metadata is its own provider, as in the MCP specification of March
 * 2025.
 */
import {
  checkResourceAllowed,
  discoverAuthorizationServerMetadata,
  extractWWWAuthenticateParams,
  IssuerMismatchError,
} from "@modelcontextprotocol/client";
import { z } from "zod";
import type { App } from "#app.ts";
import type { Fetch } from "#agent/models/fetch.ts";
import { SignInFault } from "./sign-in-fault.ts";
import { providerFetch } from "./provider-fetch.ts";
import { isSafe, type Provider, toProvider } from "./metadata.ts";
import type { SignInToolset } from "../flow/sign-in-subject.ts";

/** Parameters of an authorization request. */
export interface AuthorizationPlan {
  provider: Provider;
  /** Resource indicator of the tool server (RFC 8707). Null if the server's metadata names none. */
  resource: string | null;
  scope: string | null;
}

const ResourceMetadata = z.object({
  resource: z.string().max(2048),
  authorization_servers: z.array(z.string().max(2048)).optional(),
  scopes_supported: z.array(z.string().max(500)).max(200).optional(),
});
type ResourceMetadata = z.output<typeof ResourceMetadata>;

/** Discovers the provider of a toolset. Throws a `SignInFault`. */
export async function discoverProvider(
  app: Pick<App, "config">,
  toolset: SignInToolset,
): Promise<AuthorizationPlan> {
  const fetch = providerFetch(app, toolset.workspace_id);
  const challenge = extractWWWAuthenticateParams(await requestChallenge(fetch, toolset));
  const metadata = await resourceMetadata(fetch, toolset.url, challenge.resourceMetadataUrl);
  if (
    metadata &&
    !checkResourceAllowed({ requestedResource: toolset.url, configuredResource: metadata.resource })
  )
    throw new SignInFault(`The metadata of the tool server names another resource: ${metadata.resource}.`);
  const named = metadata?.authorization_servers?.[0];
  const provider = await (named === undefined ? ownProvider(fetch, toolset.url) : providerOf(fetch, named));
  const asked = challenge.scope ?? metadata?.scopes_supported?.join(" ");
  return {
    provider,
    resource: metadata?.resource ?? null,
    scope: toolset.oauth_scopes ?? (asked ? withOffline(asked, provider) : null),
  };
}

/** Sends a request without a token. Callers use only the `WWW-Authenticate` header of the response. */
async function requestChallenge(fetch: Fetch, { kind, url }: SignInToolset): Promise<Response> {
  if (kind !== "mcp") return fetch(url, { headers: { accept: "application/json" } });
  return fetch(url, {
    method: "POST",
    headers: { accept: "application/json, text/event-stream", "content-type": "application/json" },
    body: JSON.stringify({ jsonrpc: "2.0", id: 1, method: "ping" }),
  });
}

async function resourceMetadata(
  fetch: Fetch,
  server: string,
  told: URL | undefined,
): Promise<ResourceMetadata | undefined> {
  const { origin, pathname } = new URL(server);
  const path = pathname === "/" ? "" : pathname.replace(/\/$/, "");
  const known = `${origin}/.well-known/oauth-protected-resource`;
  for (const address of told ? [told.href] : new Set([known + path, known])) {
    const response = await fetch(address, { headers: { accept: "application/json" } });
    if (!response.ok) continue;
    return await parseMetadata(response, ResourceMetadata, address);
  }
  if (told)
    throw new SignInFault(`The tool server names a metadata address that returns no metadata: ${told.href}.`);
  return undefined;
}

/**
 * Returns the server itself as its provider, because it names no other. The issuer may be any URL of the server's
 * origin.
 */
async function ownProvider(fetch: Fetch, server: string): Promise<Provider> {
  const { href, origin } = new URL("/", server);
  const provider = await providerOf(fetch, href, { skipIssuerValidation: true });
  if (URL.parse(provider.issuer)?.origin !== origin) throw ofAnother(href);
  return provider;
}

const ofAnother = (issuer: string, cause?: unknown) =>
  new SignInFault(`The metadata at ${issuer} names another issuer.`, { cause });

async function providerOf(
  fetch: Fetch,
  issuer: string,
  options: { skipIssuerValidation?: boolean } = {},
): Promise<Provider> {
  if (!isSafe(issuer)) throw new SignInFault(`The address of the provider is not https: ${issuer}.`);
  try {
    const metadata = await discoverAuthorizationServerMetadata(issuer, { fetchFn: fetch, ...options });
    if (metadata) return toProvider(metadata);
  } catch (error) {
    if (error instanceof SignInFault) throw error;
    if (error instanceof IssuerMismatchError) throw ofAnother(issuer, error);
    throw new SignInFault(`The metadata of ${issuer} is invalid.`, { cause: error });
  }
  throw new SignInFault(`The tool server names no provider, and ${issuer} has no metadata.`);
}

/** Adds `offline_access` to the scopes, because some providers otherwise issue no refresh token. */
function withOffline(scope: string, { scopes_supported }: Provider): string {
  const isAskedFor = scope.split(" ").includes("offline_access");
  return !isAskedFor && scopes_supported?.includes("offline_access") ? `${scope} offline_access` : scope;
}

async function parseMetadata<T extends z.ZodType>(
  response: Response,
  schema: T,
  address: string,
): Promise<z.output<T>> {
  const json: unknown = await response.json().catch(() => undefined);
  const result = schema.safeParse(json);
  if (!result.success) throw new SignInFault(`${address} returned no valid metadata.`);
  return result.data;
}
