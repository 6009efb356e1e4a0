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
/** Asks who answered, with a proof that it is ourselves who ask. No guest ever sees that. */
export const visitHeader = "x-kontor-visit";
/** The answer to it. */
export const machineHeader = "x-kontor-machine";
/** On the way in; the forwarding ones are said by us alone, and so is the length. */
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
/** On the way out. */
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
/** To all other methods Node would add an empty chunked body where nothing says how long it is. */
const withoutBody = new Set(["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"]);

/** Who the visitor is, as the guest is told. */
export interface Visitor {
  /** The address, with those of trusted proxies before us in front of it. */
  forwardedFor: string;
  isSecure: boolean;
}

/** `requestId`, where it is given, takes the place of the visitor's own. */
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

/** What we say ourselves in an answer. */
export interface OwnHeaders {
  /** A guest must not pin a name, `localhost` say, that others use after it. */
  hsts: boolean;
  cookie?: string;
  /** In place of the guest's. */
  requestId?: string;
  /** Who answered: for ourselves alone. */
  machine?: string;
}

export function toVisitor({ rawHeaders, statusCode = 0 }: IncomingMessage, own: OwnHeaders): string[] {
  const sent: string[] = [];
  endToEnd(rawHeaders, keptFromVisitors, (name, lower, value) => {
    if (lower === "content-length" && isWithoutContent(statusCode)) return;
    if (own.requestId !== undefined && lower === requestIdHeader) return;
    if (lower !== "set-cookie") sent.push(name, value);
    // For this name alone: another sandbox's previews, and the console, may be its neighbours.
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

/** By one loop: every request goes through it twice, and most name nothing more than `keep-alive`. */
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
      // How long a body is, and whom it is for, is not to be taken away by naming it.
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

/** How long the body is, said by us in the one way that fits: the parser has refused whatever said it in two. */
function framing({ headers }: IncomingMessage, method: string): string[] {
  if (headers["transfer-encoding"] !== undefined) return ["Transfer-Encoding", "chunked"];
  const length = headers["content-length"] ?? (withoutBody.has(method) ? undefined : "0");
  return length === undefined ? [] : ["Content-Length", length];
}
