/**
 * Builds the headers of forwarded requests and responses in Node's raw form: names and values alternate, so that order,
 * case and repetition stay. Hop-by-hop headers are dropped, and neither side can forge headers of Kontor.
 */
import type { IncomingMessage } from "node:http";
import { isOwnCookie, withoutCredentials } from "../credentials.ts";

/** Hop-by-hop headers (RFC 9110 §7.6.1). `trailer` announces trailers, which are passed on, so it stays. */
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
/** Marks a probe visit of this server, with a proof. No guest ever sees it. */
export const visitHeader = "x-kontor-visit";
/** Names the machine that responded to a probe visit. */
export const machineHeader = "x-kontor-machine";
/** Request headers that the guest does not get. Only this server sets the forwarding headers and the length. */
const keptFromGuests = new Set([
  ...hopByHop,
  "content-length",
  "forwarded",
  "x-forwarded-for",
  "x-forwarded-host",
  "x-forwarded-port",
  "x-forwarded-proto",
  "x-real-ip",
  visitHeader,
]);
/** Response headers that the visitor does not get. */
const keptFromVisitors = new Set([
  ...hopByHop,
  "alt-svc",
  "strict-transport-security",
  "x-kontor-error",
  machineHeader,
]);
/** Responses without content (RFC 9110, 8.6). A Content-Length would make a proxy in front of us wait for a body. */
const isWithoutContent = (status: number) => status < 200 || status === 204 || status === 304;
const connection = "connection";
const requestIdHeader = "x-request-id";
/**
 * Methods to which Node adds no body. For other methods, Node would add an empty chunked body if no header gives its
 * length.
 */
const withoutBody = new Set(["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"]);

/** The visitor's identity, as the guest gets it. */
export interface Visitor {
  /** The visitor's address, after the addresses of trusted proxies. */
  forwardedFor: string;
  isSecure: boolean;
}

/** Returns the headers of a request to the guest. `requestId`, if given, replaces the visitor's own request id. */
export function toGuest(
  request: IncomingMessage,
  visitor: Visitor,
  { isUpgrade, requestId }: { isUpgrade: boolean; requestId?: string },
): string[] {
  const { headers, rawHeaders, method = "GET" } = request;
  const sent: string[] = [];
  endToEnd(rawHeaders, keptFromGuests, (name, lower, value) => {
    if (requestId !== undefined && lower === requestIdHeader) return;
    const clean = withoutCredentials(lower, value);
    if (clean !== undefined) sent.push(name, clean);
  });
  sent.push("X-Forwarded-For", visitor.forwardedFor);
  sent.push("X-Forwarded-Proto", visitor.isSecure ? "https" : "http");
  sent.push("X-Forwarded-Host", headers.host ?? "");
  if (requestId !== undefined) sent.push("X-Request-Id", requestId);
  if (isUpgrade) sent.push("Connection", "Upgrade", "Upgrade", headers.upgrade ?? "");
  else sent.push(...framing(request, method));
  if (headers.expect !== undefined) sent.push("Expect", "100-continue");
  return sent;
}

/** Headers that this server adds to a response. */
export interface OwnHeaders {
  /** True only if the site may send HSTS. A guest must not pin a shared name such as `localhost`. */
  hsts: boolean;
  cookie?: string;
  /** Request id, which replaces the guest's own. */
  requestId?: string;
  /** The machine that responded, for probe visits only. */
  machine?: string;
}

export function toVisitor({ rawHeaders, statusCode = 0 }: IncomingMessage, own: OwnHeaders): string[] {
  const sent: string[] = [];
  endToEnd(rawHeaders, keptFromVisitors, (name, lower, value) => {
    if (lower === "content-length" && isWithoutContent(statusCode)) return;
    if (own.requestId !== undefined && lower === requestIdHeader) return;
    if (lower !== "set-cookie") sent.push(name, value);
    // A cookie is limited to this name, because other sandboxes' previews and the console may have neighbouring names.
    else if (!isOwnCookie(value)) sent.push(name, value.replaceAll(/;\s*domain\s*=[^;]*/gi, ""));
  });
  sent.push(...ownHeaders(own));
  return sent;
}

export function ownHeaders({ hsts, cookie, requestId, machine }: OwnHeaders): string[] {
  const said: string[] = [];
  if (hsts) said.push("Strict-Transport-Security", "max-age=31536000");
  if (cookie !== undefined) said.push("Set-Cookie", cookie);
  if (requestId !== undefined) said.push("X-Request-Id", requestId);
  if (machine !== undefined) said.push(machineHeader, machine);
  return said;
}

export function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}

/**
 * Drops hop-by-hop headers in a single loop, because every request passes it twice, and most `Connection` headers name
 * only `keep-alive`.
 */
function endToEnd(
  raw: readonly string[],
  kept: ReadonlySet<string>,
  take: (name: string, lower: string, value: string) => void,
): void {
  let named: Set<string> | undefined;
  for (let at = 0; at < raw.length; at += 2) {
    if (raw[at]!.length !== connection.length || raw[at]!.toLowerCase() !== connection) continue;
    for (const part of raw[at + 1]!.split(",")) {
      const token = part.trim().toLowerCase();
      // `Connection` must not remove the headers for length and host.
      if (!kept.has(token) && token !== "content-length" && token !== "host") {
        named = (named ?? new Set()).add(token);
      }
    }
  }
  for (let at = 0; at < raw.length; at += 2) {
    const name = raw[at]!;
    const lower = name.toLowerCase();
    if (!kept.has(lower) && !named?.has(lower)) take(name, lower, raw[at + 1]!);
  }
}

/** Returns the header that frames the body. The parser has refused requests with two framings. */
function framing({ headers }: IncomingMessage, method: string): string[] {
  if (headers["transfer-encoding"] !== undefined) return ["Transfer-Encoding", "chunked"];
  const length = headers["content-length"] ?? (withoutBody.has(method) ? undefined : "0");
  return length === undefined ? [] : ["Content-Length", length];
}
