/** Reads the host name of a request, which decides how the request is served. */
import type { IncomingMessage } from "node:http";

/**
 * Returns the name in lower case, without port and final dot. Empty if an HTTP/1.0 client sends none. Undefined if the
 * request names two hosts: `Host` twice, or another host in an absolute URL (RFC 9112 §3.2.2). The next server on the
 * way might choose the other host.
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
  // Nearly all requests have only a path.
  if (url.startsWith("/")) return bareHost(host);
  const inAddress = /^[a-z][a-z0-9+.-]*:\/\/([^/?#]*)/i.exec(url)?.[1];
  if (inAddress !== undefined && inAddress.toLowerCase() !== host.toLowerCase()) return undefined;
  return bareHost(host);
}

/** `3000-abc.sbx.example.com.:8443` → `3000-abc.sbx.example.com` */
export function bareHost(host: string): string {
  return host.toLowerCase().replace(/:\d*$/, "").replace(/\.$/, "");
}

/** Returns path and query of a URL in absolute or origin form. */
export function pathOf(url: string): string {
  if (url.startsWith("/")) return url;
  const path = url.replace(/^[a-z][a-z0-9+.-]*:\/\/[^/?#]*/i, "");
  return path.startsWith("/") || path === "*" ? path : `/${path}`;
}
