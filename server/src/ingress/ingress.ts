/**
 * The ingress gets every request of both listeners first, and decides by its host name. A table of rules finds the
 * owner of a name: an app, a function, or a port of a sandbox. Names without an owner go to the three APIs. Rules read
 * memory only, never the database.
 *
 * A machine gets only requests for its own names, and never a credential of Kontor. A guest with invalid responses
 * affects only its own requests. The ingress knows no sandbox; `compose/` passes in the rules.
 */
import { randomBytes } from "node:crypto";
import http, {
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerOptions,
  ServerResponse,
} from "node:http";
import https from "node:https";
import type { AddressInfo, BlockList, Socket } from "node:net";
import { isIPv6 } from "node:net";
import type { Duplex } from "node:stream";
import type { TLSSocket } from "node:tls";
import { callbackify } from "node:util";
import { hasBody, visitHeader } from "./proxy/headers.ts";
import { hostOf, pathOf } from "./sites/hosts.ts";
import { sendPage } from "./pages.ts";
import type { HostRule, Site, Visitors } from "./sites/site.ts";
import type { Certificates } from "./tls/certificates.ts";
import { type VisitOptions, probeSite } from "./proxy/probe-visit.ts";

export interface IngressOptions {
  /** Rules, which are tried in order. The first rule that matches a name serves it. */
  rules: readonly HostRule[];
  /** Domains that belong to Kontor, without ports. Unknown names below a domain get a 404 and never reach the APIs. */
  domains: readonly string[];
  /** The APIs' own name. Null if they have only loopback names. */
  apiHost: string | null;
  /** Null if a proxy in front of this server ends TLS. */
  certificates: Certificates | null;
  /** Port suffix of HTTPS addresses, such as `:8443`. Empty for 443. */
  tlsSuffix: string;
  /** Proxies whose X-Forwarded-* headers are trusted. */
  trustedProxies: BlockList;
  log: (event: string, fields: Record<string, unknown>) => void;
}

/** The APIs behind the table of rules, and their response to malformed HTTP. */
export interface Apis {
  handle: RequestListener;
  clientError: (error: NodeJS.ErrnoException, socket: Socket) => void;
  /** Handles upgrades of requests that `options.shouldUpgradeCallback` accepts. */
  upgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void;
  options: ServerOptions;
}

/**
 * Time for which bytes that a client sends after its response are read and dropped, so that the client can read the
 * response.
 */
const lingerMs = 10_000;

export class Ingress {
  readonly #options: IngressOptions;
  readonly #upgraded = new Set<Duplex>();
  /** Proof by which this server recognises its own probe visits. */
  readonly #proof = randomBytes(32).toString("base64url");
  #apis: Apis | undefined;
  #plain: Server | undefined;
  readonly #isListening = Promise.withResolvers<AddressInfo>();
  #tls: https.Server | undefined;

  constructor(options: IngressOptions) {
    this.#options = options;
  }

  /** Creates the plain HTTP server. `apis` gets requests for names without an owner. */
  createServer(apis: Apis): Server {
    this.#apis = apis;
    const server = http.createServer(this.#serverOptions(apis));
    this.#serve(server);
    this.#plain = server;
    server.once("listening", () => this.#isListening.resolve(server.address() as AddressInfo));
    return server;
  }

  /**
   * Requests a path of a site like a visitor, by its name and through the plain listener, and checks which machine
   * responds. Throws `VisitFailed` if another machine or none responds. Waits for the listener.
   */
  probe(host: string, path: string, expected: VisitOptions): Promise<{ status: number }> {
    return probeSite(this.#isListening.promise, { host, path, proof: this.#proof }, expected);
  }

  /** Listens with TLS, and returns the port. */
  async listenTls(address: { host: string; port: number; fd?: number }): Promise<number | undefined> {
    const { certificates } = this.#options;
    if (certificates === null || this.#apis === undefined) return undefined;
    const server = https.createServer({
      ...this.#serverOptions(this.#apis),
      minVersion: "TLSv1.2",
      ALPNProtocols: ["http/1.1"],
      SNICallback: callbackify((name: string) => certificates.contextFor(name)),
      ...(await certificates.defaultCertificate()),
    });
    this.#serve(server);
    server.on("clientError", this.#apis.clientError);
    // The client does not trust the certificate, or does not use TLS.
    server.on("tlsClientError", (_error, socket) => socket.destroy());
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(address, resolve);
    });
    this.#tls = server;
    return (server.address() as AddressInfo).port;
  }

  /** True if the name leads to a site now, so that a certificate may be requested for it. */
  async isServed(host: string): Promise<boolean> {
    return host === this.#options.apiHost || ((await this.#siteAt(host)?.exists()) ?? false);
  }

  /** From now on each response is the last on its connection, so that clients close their connections first. */
  startDraining(): void {
    for (const server of [this.#plain, this.#tls]) {
      server?.prependListener("request", (_request, response) => (response.shouldKeepAlive = false));
    }
  }

  /** Ends exchanges without an end of their own, waits up to `graceMs` for responses in flight, and cuts the others. */
  async close(graceMs: number): Promise<void> {
    this.#options.certificates?.close?.();
    for (const socket of this.#upgraded) socket.destroy();
    const server = this.#tls;
    this.#tls = undefined;
    if (server === undefined) return;
    const cut = setTimeout(() => server.closeAllConnections(), graceMs);
    const closed = new Promise((resolve) => server.close(resolve));
    server.closeIdleConnections();
    await closed;
    clearTimeout(cut);
  }

  #serverOptions({ options }: Apis): ServerOptions {
    return {
      ...options,
      // HTTP/2 without TLS would be a connection whose requests no code here reads.
      shouldUpgradeCallback: (request) => {
        const site = this.#siteOf(request);
        if (site === undefined) return options.shouldUpgradeCallback?.(request) ?? false;
        return request.headers.upgrade?.toLowerCase() !== "h2c" && site.upgrade !== undefined;
      },
    };
  }

  #serve(server: Server | https.Server): void {
    server.on("request", (request, response) => this.#request(request, response));
    server.on("checkContinue", (request, response) => {
      const site = this.#siteOf(request);
      if (site === undefined) response.writeContinue();
      this.#request(request, response);
    });
    server.on("upgrade", (request, socket, head) => void this.#upgrade(request, socket, head));
  }

  #request(request: IncomingMessage, response: ServerResponse): void {
    const host = hostOf(request);
    const visitor = this.#visitorOf(request);
    if (host === undefined) {
      response.shouldKeepAlive = false;
      return sendPage(request, response, "bad_host", visitor);
    }
    if (!visitor.isProbe && this.#handlePlainHttp(request, response, host)) return;
    const site = this.#siteAt(host);
    if (site === undefined) {
      if (visitor.hsts) response.setHeader("Strict-Transport-Security", "max-age=31536000");
      this.#apis?.handle(request, response);
      return;
    }
    response.on("error", () => {});
    response.once("close", () => drainBody(request));
    site
      .handle({ request, response, visitor })
      .catch((error: unknown) => this.#failed(host, error, response));
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const site = this.#siteOf(request);
    if (site === undefined) return this.#apis?.upgrade(request, socket, head);
    const response = new ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket as Socket);
    response.once("finish", () => socket.end());
    response.on("error", () => {});
    socket.on("error", () => socket.destroy());
    this.#upgraded.add(socket);
    socket.once("close", () => this.#upgraded.delete(socket));
    const visitor = this.#visitorOf(request);
    try {
      await site.upgrade?.({ request, response, visitor }, { request, socket, head, response });
    } catch (error) {
      this.#failed(hostOf(request) ?? "", error, response);
    }
  }

  #failed(host: string, error: unknown, response: ServerResponse): void {
    this.#options.log("a request to a site failed", { host, error });
    if (!response.headersSent) response.destroy();
  }

  #siteOf(request: IncomingMessage): Site | undefined {
    const host = hostOf(request);
    return host === undefined ? undefined : this.#siteAt(host);
  }

  #siteAt(host: string): Site | undefined {
    for (const rule of this.#options.rules) {
      const site = rule.match(host);
      if (site !== undefined) return site;
    }
    return this.#options.domains.some((domain) => host.endsWith(`.${domain}`)) ? unknownSite : undefined;
  }

  /**
   * Handles plain HTTP for names that are served by HTTPS only: answers the certificate authority's challenge, and
   * redirects other requests.
   */
  #handlePlainHttp(request: IncomingMessage, response: ServerResponse, host: string): boolean {
    const { certificates, apiHost, tlsSuffix } = this.#options;
    if (!certificates?.isPublic || isTls(request)) return false;
    if (host !== apiHost && this.#siteAt(host) === undefined) return false;
    const path = pathOf(request.url ?? "/");
    const proof = certificates.challenge?.(path);
    if (proof === undefined) response.writeHead(308, { location: `https://${host}${tlsSuffix}${path}` });
    response.end(proof);
    return true;
  }

  #visitorOf(request: IncomingMessage): Visitors["visitor"] {
    const peer = (request.socket.remoteAddress ?? "").replace(/^::ffff:/, "");
    const isSecure = isTls(request);
    const hsts = isSecure && (this.#options.certificates?.isPublic ?? false);
    // An ordinary comparison is safe, because the proof has 256 random bits.
    const isProbe = request.headers[visitHeader] === this.#proof;
    if (!this.#options.trustedProxies.check(peer, isIPv6(peer) ? "ipv6" : "ipv4")) {
      return { forwardedFor: peer, isSecure, hsts, isProbe };
    }
    const before = [request.headers["x-forwarded-for"]].flat().join(", ");
    return {
      forwardedFor: before === "" ? peer : `${before}, ${peer}`,
      isSecure: isSecure || request.headers["x-forwarded-proto"] === "https",
      hsts,
      isProbe,
    };
  }
}

/** The site of an unknown name below our domains. */
const unknownSite: Site = {
  exists: async () => false,
  handle: async ({ request, response, visitor }) => sendPage(request, response, "not_found", visitor),
};

function isTls(request: IncomingMessage): boolean {
  return (request.socket as Partial<TLSSocket>).encrypted === true;
}

/**
 * Reads and drops the rest of the request. Closing the connection would break the client's pipe before it reads the
 * response.
 */
function drainBody(request: IncomingMessage): void {
  if (!hasBody(request) || request.complete || request.socket.destroyed) return;
  request.removeAllListeners("data");
  request.resume();
  const cut = setTimeout(() => request.socket.destroy(), lingerMs);
  request.once("end", () => clearTimeout(cut));
  request.socket.once("close", () => clearTimeout(cut));
}
