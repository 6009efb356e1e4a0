/**
 * Forwards plain HTTP to an allowed host. A connection carries a single request. Node's strict parser reads the
 * request, the allowlist is checked, and the request is written anew on a separate connection. Both connections close
 * after the response. So the other end can never read a client's bytes as a second request (request smuggling). A
 * machine's open connections are its requests in flight.
 */
import http, { type IncomingMessage, type ServerResponse } from "node:http";
import { pipeline } from "node:stream";
import { HTTP_PORT, parseAuthority } from "./allowlist.ts";
import type { Client, OnDenied } from "./clients.ts";
import { asDenial, Denial } from "./denials.ts";
import { dial, type AllowedNameResolver } from "./destination.ts";

export interface ForwardDeps {
  names: AllowedNameResolver;
  denied: OnDenied;
}

/** Hop-by-hop headers (RFC 9110 §7.6.1), and headers between the machine and this proxy. */
const HOP_BY_HOP = new Set([
  "connection",
  "expect",
  "http2-settings",
  "keep-alive",
  "proxy-authenticate",
  "proxy-authorization",
  "proxy-connection",
  "te",
  "trailer",
  "transfer-encoding",
  "upgrade",
]);
/**
 * Methods to which Node adds no body. For other methods, Node would add an empty chunked body if no header gives its
 * length.
 */
const WITHOUT_BODY = new Set(["GET", "HEAD", "DELETE", "OPTIONS", "TRACE"]);
const MAX_HEADER_BYTES = 16_384;
/** Timeout for the start of the response, and for each pause in it. */
const IDLE_MS = 10 * 60_000;

/**
 * Forwards a request and streams the response. `tunnelled` is the host of the CONNECT around the request; such a
 * request names no host itself.
 */
export async function forward(
  deps: ForwardDeps,
  client: Client,
  request: IncomingMessage,
  response: ServerResponse,
  tunnelled?: string,
): Promise<void> {
  let authority: string | undefined;
  try {
    const target = readTarget(request, tunnelled);
    authority = `${target.host}:${target.port}`;
    const name = await client.checkDestination(request.socket, target.host, target.port);
    const addresses = await deps.names.resolve(name);
    const socket = await dial({ name, port: target.port, addresses }, client.signal);
    client.track(socket);
    if (response.destroyed) {
      socket.destroy();
      return;
    }
    const outgoing = http.request({
      createConnection: () => socket,
      method: request.method ?? "GET",
      path: target.path,
      headers: [
        "Host",
        target.port === HTTP_PORT ? name : `${name}:${target.port}`,
        ...endToEnd(request.rawHeaders, ["host", "content-length"]),
        ...framing(request),
        "Connection",
        "close",
      ],
      maxHeaderSize: MAX_HEADER_BYTES,
      insecureHTTPParser: false,
    });
    const incoming = await exchange(request, response, outgoing);
    response.writeHead(incoming.statusCode ?? 502, incoming.statusMessage ?? "", [
      ...endToEnd(incoming.rawHeaders, []),
      "Connection",
      "close",
    ]);
    // A truncated response must not look complete, so an error destroys the connection.
    pipeline(incoming, response, (error) => {
      if (error) response.destroy();
      socket.destroy();
    });
  } catch (error) {
    const denial = asDenial(error, request.headers.host ?? "the host");
    deps.denied(client, denial, authority);
    if (response.headersSent || response.destroyed) {
      response.destroy();
      return;
    }
    // With `Connection: close`, the rest of the request is never read as another request.
    response.writeHead(denial.status, denial.phrase, denial.headers).end(denial.body);
  }
}

/** Sends the request, and returns the headers of the response. */
function exchange(
  request: IncomingMessage,
  response: ServerResponse,
  outgoing: http.ClientRequest,
): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    outgoing.setTimeout(IDLE_MS, () => outgoing.destroy(new Error("idle")));
    outgoing.on("error", reject);
    outgoing.on("close", () => reject(new Error("no answer")));
    outgoing.on("response", resolve);
    response.on("close", () => outgoing.destroy());
    if (hasBody(request)) pipeline(request, outgoing, (error) => error && outgoing.destroy());
    else outgoing.end();
  });
}

/** Returns host and path of the request: from `http://host[:port]/path`, or from a path alone inside a tunnel. */
function readTarget(
  { url = "", headers }: Pick<IncomingMessage, "url" | "headers">,
  tunnelled?: string,
): { host: string; port: number; path: string } {
  if (tunnelled !== undefined) {
    const named = parseAuthority(headers.host ?? "", HTTP_PORT);
    if (!url.startsWith("/") || named?.host.toLowerCase() !== tunnelled || named.port !== HTTP_PORT) {
      throw new Denial("not_allowed", headers.host ?? url);
    }
    return { host: tunnelled, port: HTTP_PORT, path: url };
  }
  const [, scheme, authority = "", path = ""] = /^([a-z][a-z0-9+.-]*):\/\/([^/?#]*)([^#]*)$/i.exec(url) ?? [];
  if (scheme?.toLowerCase() !== "http") throw new Denial("use_connect");
  const target = parseAuthority(authority, HTTP_PORT);
  if (target === undefined)
    throw new Denial("bad_request", "the address names no host; send http://host/path.");
  return { ...target, path: path.startsWith("/") ? path : `/${path}` };
}

/** Returns the headers without hop-by-hop headers. Names and values alternate, as in Node. */
function endToEnd(raw: readonly string[], more: readonly string[]): string[] {
  const pairs = raw.flatMap((name, at) => (at % 2 === 0 ? [[name, raw[at + 1] ?? ""] as const] : []));
  const named = pairs
    .filter(([name]) => name.toLowerCase() === "connection")
    .flatMap(([, value]) =>
      value
        .toLowerCase()
        .split(",")
        .map((token) => token.trim()),
    );
  const dropped = new Set([...HOP_BY_HOP, ...named, ...more]);
  // A client must not remove the header that frames the body.
  if (!more.includes("content-length")) dropped.delete("content-length");
  return pairs.filter(([name]) => !dropped.has(name.toLowerCase())).flat();
}

/** Returns the header that frames the body. The parser has refused requests with two framings. */
function framing({ method = "GET", headers }: IncomingMessage): string[] {
  if (headers["transfer-encoding"] !== undefined) return ["Transfer-Encoding", "chunked"];
  const length = headers["content-length"] ?? (WITHOUT_BODY.has(method) ? undefined : "0");
  return length === undefined ? [] : ["Content-Length", length];
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0;
}
