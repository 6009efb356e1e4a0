/**
 * Credentials that a visitor sends to Kontor and that a guest must never see. These are the preview token in its three
 * places, the console's session cookie, and an API token sent to the wrong address.
 */
import { createHash, timingSafeEqual } from "node:crypto";
import type { IncomingHttpHeaders } from "node:http";

const tokenHeader = "x-service-preview-token";
/** Name of the cookie and of the query parameter. */
const tokenName = "svc_preview_token";
const ownCookies = new Set([tokenName, "kontor_session", "kontor_device"]);

export interface VisitorTokens {
  /** All tokens that the visitor sent, from all three places. */
  tokens: string[];
  /** The token from the query. A browser gets it as a cookie, for the page's further requests. */
  inQuery: string | undefined;
  /** Path and query without the token. */
  path: string;
}

export function readTokens(path: string, headers: IncomingHttpHeaders): VisitorTokens {
  const { kept, found } = splitQuery(path);
  const header = [headers[tokenHeader]].flat()[0];
  const cookies = pairs(headers.cookie ?? "").filter(([name]) => name === tokenName);
  return {
    tokens: [header, found, ...cookies.map(([, value]) => value)].filter((token) => token !== undefined),
    inQuery: found,
    path: kept,
  };
}

/** Compares digests in constant time. */
export function isToken(shown: string | undefined, token: string): boolean {
  return shown !== undefined && timingSafeEqual(digest(shown), digest(token));
}

/**
 * Returns the cookie that stores the token. A page of its own gets SameSite=Lax. A frame in another site's page gets a
 * cookie that is partitioned by that page.
 */
export function tokenCookie(token: string, headers: IncomingHttpHeaders, isSecure: boolean): string {
  const isFrame = /^(?:iframe|frame|embed|object)$/.test(String(headers["sec-fetch-dest"]));
  const scope = isSecure && isFrame ? "SameSite=None; Secure; Partitioned" : "SameSite=Lax";
  const secure = isSecure && !isFrame ? "; Secure" : "";
  return `${tokenName}=${token}; Path=/; HttpOnly; ${scope}${secure}`;
}

/** Returns a request header as the guest gets it. Undefined if nothing of the header is left. */
export function withoutCredentials(name: string, value: string): string | undefined {
  switch (name.toLowerCase()) {
    case tokenHeader:
      return undefined;
    case "authorization":
      return /^bearer +svc_/i.test(value) ? undefined : value;
    case "cookie": {
      const kept = value.split(";").filter((part) => !ownCookies.has(part.split("=")[0]!.trim()));
      return kept.length === 0 ? undefined : kept.join(";").trim();
    }
    // A page that was opened with the token in its address sends that address as the referrer of each further request.
    case "referer":
      return splitQuery(value).kept;
    default:
      return value;
  }
}

/** True if a guest's Set-Cookie would replace a cookie of Kontor. */
export function isOwnCookie(setCookie: string): boolean {
  return ownCookies.has(setCookie.split(/[=;]/, 1)[0]!.trim());
}

function splitQuery(address: string): { kept: string; found: string | undefined } {
  const at = address.indexOf("?");
  if (at < 0) return { kept: address, found: undefined };
  let found: string | undefined;
  const parts = address.slice(at + 1).split("&");
  const kept = parts.filter((part) => {
    const [name, ...value] = part.split("=");
    if (decode(name!) !== tokenName) return true;
    found ??= decode(value.join("="));
    return false;
  });
  if (kept.length === parts.length) return { kept: address, found: undefined };
  return { kept: address.slice(0, at) + (kept.length > 0 ? `?${kept.join("&")}` : ""), found };
}

function pairs(cookie: string): [string, string][] {
  return cookie.split(";").map((part) => {
    const [name, ...value] = part.split("=");
    return [name!.trim(), value.join("=").trim()];
  });
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    return text;
  }
}

function digest(text: string): Buffer {
  return createHash("sha256").update(text).digest();
}
