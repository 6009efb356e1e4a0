/** What a request shows to say who is asking: an API token, or the console's sign-in cookie. */
import type { IncomingHttpHeaders } from "node:http";
import type { Credential } from "#accounts/actor.ts";

export const sessionCookie = "kontor_session";

/** A header that is there but not understood hides no cookie: it is a credential nobody holds. */
export function credentialOf(headers: IncomingHttpHeaders): Credential | undefined {
  const { authorization, cookie } = headers;
  if (authorization !== undefined) {
    const match = /^Bearer +([\x21-\x7e]+) *$/i.exec(authorization);
    return { kind: "token", secret: match?.[1] ?? "" };
  }
  const secret = cookie === undefined ? undefined : cookieValue(cookie, sessionCookie);
  return secret === undefined ? undefined : { kind: "session", secret };
}

export function cookieValue(header: string, name: string): string | undefined {
  for (const part of header.split(";")) {
    const [key, ...value] = part.split("=");
    if (key?.trim() === name) return value.join("=").trim();
  }
  return undefined;
}

/**
 * Whether a browser sent this from another site's page. A cookie travels by itself, so a changing request that
 * carries one must come from our own origin; browsers say where from in `Origin`, and programs that are none of a
 * browser send neither header. A token is never sent by itself and needs no check.
 */
export function isForeignOrigin(headers: IncomingHttpHeaders, publicOrigin: string | null): boolean {
  if (headers.authorization !== undefined) return false;
  const { origin, host } = headers;
  if (origin === undefined) {
    const site = headers["sec-fetch-site"];
    return site !== undefined && site !== "same-origin" && site !== "none";
  }
  if (origin === publicOrigin) return false;
  return !URL.canParse(origin) || new URL(origin).host !== host;
}
