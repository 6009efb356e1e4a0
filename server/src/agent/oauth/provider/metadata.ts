/** Metadata of a provider (RFC 8414, OpenID Connect Discovery), reduced to the fields that this server uses. */
import type { AuthorizationServerMetadata } from "@modelcontextprotocol/client";
import { isLoopback } from "#lib/network/addresses.ts";
import { SignInFault } from "./sign-in-fault.ts";

const addresses = [
  "authorization_endpoint",
  "token_endpoint",
  "registration_endpoint",
  "revocation_endpoint",
] as const;
const others = [
  "issuer",
  "response_types_supported",
  "scopes_supported",
  "code_challenge_methods_supported",
  "token_endpoint_auth_methods_supported",
  "authorization_response_iss_parameter_supported",
  "client_id_metadata_document_supported",
] as const;

export interface Provider {
  issuer: string;
  authorization_endpoint: string;
  token_endpoint: string;
  registration_endpoint?: string;
  revocation_endpoint?: string;
  response_types_supported: string[];
  scopes_supported?: string[];
  code_challenge_methods_supported?: string[];
  token_endpoint_auth_methods_supported?: string[];
  authorization_response_iss_parameter_supported?: boolean;
  client_id_metadata_document_supported?: boolean;
}

/** Reduces metadata to a `Provider`. Throws a `SignInFault` if the metadata rules out a sign-in. */
export function toProvider(metadata: AuthorizationServerMetadata): Provider {
  const said = metadata as Readonly<Record<string, unknown>>;
  const provider = Object.fromEntries(
    [...addresses, ...others].flatMap((key) => (said[key] === undefined ? [] : [[key, said[key]]])),
  ) as unknown as Provider;
  for (const key of addresses) {
    const address = provider[key];
    if (address !== undefined && !isSafe(address))
      throw new SignInFault(`The ${key} of ${provider.issuer} is not an https address.`);
  }
  // If the field is absent, the provider has no support for PKCE. Without PKCE, an attacker who intercepts the code can
  // exchange it (OAuth 2.1, section 4.1.1).
  if (!provider.code_challenge_methods_supported?.includes("S256"))
    throw new SignInFault(`The metadata of ${provider.issuer} does not list PKCE with S256.`);
  return provider;
}

/** Returns the metadata in the type of the official client. */
export function metadataOf(provider: Provider): AuthorizationServerMetadata {
  return provider as AuthorizationServerMetadata;
}

/** Returns true for https URLs and for loopback. Requests check private addresses separately. */
export function isSafe(address: string): boolean {
  const url = URL.parse(address);
  if (url === null || url.username !== "" || url.password !== "") return false;
  return url.protocol === "https:" || (url.protocol === "http:" && isLoopback(hostOf(url)));
}

function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, "");
}
