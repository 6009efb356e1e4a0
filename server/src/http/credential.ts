/** Reads the credential of a request: an API token, or the console's session cookie. */
import type { IncomingHttpHeaders } from "node:http";
import type { Credential } from "#accounts/actor.ts";

export const sessionCookie = "kontor_session";

/** A malformed `Authorization` header does not fall back to the cookie: it is an invalid token. */
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
 * True if a browser sent the request from a page of another site. Browsers attach cookies automatically, so a write
 * with a cookie must come from our own origin. Browsers name the page's origin in `Origin` or `Sec-Fetch-Site`; other
 * clients send neither. Browsers never attach a token, so a token needs no check.
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
