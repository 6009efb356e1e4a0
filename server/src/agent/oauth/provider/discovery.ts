/**
 * Who signs people in for a toolset: its server is asked without a token and says where its metadata lies (RFC 9728),
 * that names who signs people in, and whose metadata is read and held against the name (RFC 8414). A server without
 * such metadata signs people in by itself, as those of early 2025 did.
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

/** What a sign-in is to be for, and with whom. */
export interface Plan {
  provider: Provider;
  /** As the server calls itself (RFC 8707); null where it does not say. */
  resource: string | null;
  scope: string | null;
}

const ResourceMetadata = z.object({
  resource: z.string().max(2048),
  authorization_servers: z.array(z.string().max(2048)).optional(),
  scopes_supported: z.array(z.string().max(500)).max(200).optional(),
});
type ResourceMetadata = z.output<typeof ResourceMetadata>;

/** Throws a `SignInFault`. */
export async function discover(app: Pick<App, "config">, toolset: SignInToolset): Promise<Plan> {
  const fetch = providerFetch(app, toolset.workspace_id);
  const challenge = extractWWWAuthenticateParams(await knock(fetch, toolset));
  const metadata = await resourceMetadata(fetch, toolset.url, challenge.resourceMetadataUrl);
  if (
    metadata &&
    !checkResourceAllowed({ requestedResource: toolset.url, configuredResource: metadata.resource })
  )
    throw new SignInFault(`The server's metadata is of another resource, ${metadata.resource}.`);
  const named = metadata?.authorization_servers?.[0];
  const provider = await (named === undefined ? ownProvider(fetch, toolset.url) : providerOf(fetch, named));
  const asked = challenge.scope ?? metadata?.scopes_supported?.join(" ");
  return {
    provider,
    resource: metadata?.resource ?? null,
    scope: toolset.oauth_scopes ?? (asked ? withOffline(asked, provider) : null),
  };
}

/** As somebody without a token; what is answered does not matter, its header does. */
async function knock(fetch: Fetch, { kind, url }: SignInToolset): Promise<Response> {
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
    return await parsed(response, ResourceMetadata, address);
  }
  if (told) throw new SignInFault(`The server names metadata that is not there, ${told.href}.`);
  return undefined;
}

/** Of a server that names nobody: itself, whichever issuer of its own origin it calls itself. */
async function ownProvider(fetch: Fetch, server: string): Promise<Provider> {
  const { href, origin } = new URL("/", server);
  const provider = await providerOf(fetch, href, { skipIssuerValidation: true });
  if (URL.parse(provider.issuer)?.origin !== origin) throw ofAnother(href);
  return provider;
}

const ofAnother = (issuer: string, cause?: unknown) =>
  new SignInFault(`The metadata of ${issuer} is that of another issuer.`, { cause });

async function providerOf(
  fetch: Fetch,
  issuer: string,
  options: { skipIssuerValidation?: boolean } = {},
): Promise<Provider> {
  if (!isSafe(issuer)) throw new SignInFault(`Who signs people in has no https address: ${issuer}.`);
  try {
    const metadata = await discoverAuthorizationServerMetadata(issuer, { fetchFn: fetch, ...options });
    if (metadata) return toProvider(metadata);
  } catch (error) {
    if (error instanceof SignInFault) throw error;
    if (error instanceof IssuerMismatchError) throw ofAnother(issuer, error);
    throw new SignInFault(`The metadata of ${issuer} is not what it should be.`, { cause: error });
  }
  throw new SignInFault(`The server does not say who signs people in: ${issuer} has no metadata.`);
}

/** Without it some hand out tokens for an hour and nothing newer. */
function withOffline(scope: string, { scopes_supported }: Provider): string {
  const isAskedFor = scope.split(" ").includes("offline_access");
  return !isAskedFor && scopes_supported?.includes("offline_access") ? `${scope} offline_access` : scope;
}

async function parsed<T extends z.ZodType>(
  response: Response,
  schema: T,
  address: string,
): Promise<z.output<T>> {
  const json: unknown = await response.json().catch(() => undefined);
  const result = schema.safeParse(json);
  if (!result.success) throw new SignInFault(`${address} holds no metadata.`);
  return result.data;
}
