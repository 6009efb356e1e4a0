/** Which name a request is for, and nothing else: the one thing everything here is decided by. */
import type { IncomingMessage } from "node:http";

/**
 * The name in lower case, without port and final dot; empty where an HTTP/1.0 client names none. Undefined where the
 * request names two: `Host` twice, or another one in an absolute address (RFC 9112 §3.2.2). Whoever reads it next might
 * choose the other.
 */
export function hostOf({
  rawHeaders,
  url = "",
}: Pick<IncomingMessage, "rawHeaders" | "url">): string | undefined {
  let host: string | undefined;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    if (rawHeaders[at]!.length !== 4 || rawHeaders[at]!.toLowerCase() !== "host") continue;
    if (host !== undefined) return undefined;
    host = rawHeaders[at + 1]!;
  }
  host ??= "";
  // Nearly all requests name a path alone.
  if (url.startsWith("/")) return bareHost(host);
  const inAddress = /^[a-z][a-z0-9+.-]*:\/\/([^/?#]*)/i.exec(url)?.[1];
  if (inAddress !== undefined && inAddress.toLowerCase() !== host.toLowerCase()) return undefined;
  return bareHost(host);
}

/** `3000-abc.sbx.example.com.:8443` → `3000-abc.sbx.example.com` */
export function bareHost(host: string): string {
  return host.toLowerCase().replace(/:\d*$/, "").replace(/\.$/, "");
}

/** The path and query of an address in either form. */
export function pathOf(url: string): string {
  if (url.startsWith("/")) return url;
  const path = url.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "");
  return path.startsWith("/") || path === "*" ? path : `/${path}`;
}
