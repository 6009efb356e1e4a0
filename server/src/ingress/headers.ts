/**
 * Headers on their way through, as Node takes and gives them: names and values in turn, so that order, case and
 * repetition stay as they were. What belongs to one hop stays on it, and neither side can speak in our name.
 */
import type { IncomingMessage } from "node:http";
import { isOwnCookie, withoutCredentials } from "./credentials.ts";

/** One hop's own business (RFC 9110 §7.6.1). `trailer` announces what is passed on as well. */
const hopByHop = [
  "connection",
  "expect",
  "http2-settings",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "transfer-encoding",
  "upgrade",
];
/** Said by us alone. */
const forwarding = [
  "forwarded",
  "x-forwarded-for",
  "x-forwarded-host",
  "x-forwarded-port",
  "x-forwarded-proto",
  "x-real-ip",
];
/** To all other methods Node would add an empty chunked body where nothing says how long it is. */
const withoutBody = new Set(["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"]);

/** Who the visitor is, as the guest is told. */
export interface Visitor {
  /** The address, with those of trusted proxies before us in front of it. */
  forwardedFor: string;
  isSecure: boolean;
}

export function toGuest(request: IncomingMessage, visitor: Visitor, isUpgrade: boolean): string[] {
  const { headers, rawHeaders, method = "GET" } = request;
  const kept = endToEnd(rawHeaders, [...forwarding, "content-length"]).flatMap(([name, value]) => {
    const clean = withoutCredentials(name, value);
    return clean === undefined ? [] : [name, clean];
  });
  return [
    ...kept,
    "X-Forwarded-For",
    visitor.forwardedFor,
    "X-Forwarded-Proto",
    visitor.isSecure ? "https" : "http",
    "X-Forwarded-Host",
    headers.host ?? "",
    ...(isUpgrade ? ["Connection", "Upgrade", "Upgrade", headers.upgrade ?? ""] : framing(request, method)),
    ...(headers.expect === undefined ? [] : ["Expect", "100-continue"]),
  ];
}

/** `hsts` is what we say ourselves; a guest must not pin a name, `localhost` say, that others use after it. */
export function toVisitor(
  { rawHeaders }: IncomingMessage,
  own: { hsts: boolean; cookie?: string },
): string[] {
  const dropped = ["alt-svc", "strict-transport-security", "x-kontor-error"];
  const kept = endToEnd(rawHeaders, dropped).flatMap(([name, value]) => {
    if (name.toLowerCase() !== "set-cookie") return [name, value];
    // For this name alone: another sandbox's previews, and the console, may be its neighbours.
    return isOwnCookie(value) ? [] : [name, value.replaceAll(/;\s*domain\s*=[^;]*/gi, "")];
  });
  return [...kept, ...ownHeaders(own)];
}

export function ownHeaders({ hsts, cookie }: { hsts: boolean; cookie?: string }): string[] {
  return [
    ...(hsts ? ["Strict-Transport-Security", "max-age=31536000"] : []),
    ...(cookie === undefined ? [] : ["Set-Cookie", cookie]),
  ];
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

function endToEnd(raw: readonly string[], more: readonly string[]): [name: string, value: string][] {
  const all = raw.flatMap((name, at): [string, string][] =>
    at % 2 === 0 ? [[name, raw[at + 1] ?? ""]] : [],
  );
  const named = all
    .filter(([name]) => name.toLowerCase() === "connection")
    .flatMap(([, value]) => value.split(",").map((token) => token.trim().toLowerCase()))
    // How long a body is, and whom it is for, is not to be taken away by naming it.
    .filter((token) => token !== "content-length" && token !== "host");
  const dropped = new Set([...hopByHop, ...named, ...more]);
  return all.filter(([name]) => !dropped.has(name.toLowerCase()));
}

/** How long the body is, said by us in the one way that fits: the parser has refused whatever said it in two. */
function framing({ headers }: IncomingMessage, method: string): string[] {
  if (headers["transfer-encoding"] !== undefined) return ["Transfer-Encoding", "chunked"];
  const length = headers["content-length"] ?? (withoutBody.has(method) ? undefined : "0");
  return length === undefined ? [] : ["Content-Length", length];
}
