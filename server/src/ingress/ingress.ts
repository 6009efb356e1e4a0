/**
 * The way in. Every request, on either listener, comes by here first and is decided by the name it is for: a table of
 * rules says whose the name is (an app, a port of a sandbox, its files; later a function), and what is nobody's is the
 * three APIs'. Nothing here asks the database: rules decide from memory.
 *
 * It promises that a machine gets requests for its own names alone, never a credential of ours, and that a guest
 * which answers nonsense costs the request that asked it. It knows no sandbox: main hands it what it needs.
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
import { hasBody, visitHeader } from "./headers.ts";
import { hostOf, pathOf } from "./hosts.ts";
import { sendPage } from "./pages.ts";
import type { HostRule, Site, Visitors } from "./sites.ts";
import type { Certificates } from "./tls/certificates.ts";
import { type Expected, visit } from "./visit.ts";

export interface IngressOptions {
  /** Asked in order; the first that knows the name serves it. */
  rules: readonly HostRule[];
  /** Names below these are ours: one that no rule knows is a 404, and never the APIs'. Without ports. */
  domains: readonly string[];
  /** The APIs' own name, where they have one that is not loopback. */
  apiHost: string | null;
  /** Null: a proxy in front of us ends TLS. */
  certificates: Certificates | null;
  /** What visitors write behind a name: `:8443`, or nothing where it is 443. */
  tlsSuffix: string;
  /** Whose X-Forwarded-* headers are believed. */
  trustedProxies: BlockList;
  log: (event: string, fields: Record<string, unknown>) => void;
}

/** What stands behind the table: the APIs, and what they answer to what is no HTTP. */
export interface Apis {
  handle: RequestListener;
  clientError: (error: NodeJS.ErrnoException, socket: Socket) => void;
  /** Of the requests that `options.shouldUpgradeCallback` takes. */
  upgrade: (request: IncomingMessage, socket: Duplex, head: Buffer) => void;
  options: ServerOptions;
}

/** What a client still sends after the answer to it is read and dropped for this long, so that it gets to read that. */
const lingerMs = 10_000;

export class Ingress {
  readonly #options: IngressOptions;
  readonly #upgraded = new Set<Duplex>();
  /** By which we know our own visits. */
  readonly #proof = randomBytes(32).toString("base64url");
  #apis: Apis | undefined;
  #plain: Server | undefined;
  readonly #isListening = Promise.withResolvers<AddressInfo>();
  #tls: https.Server | undefined;

  constructor(options: IngressOptions) {
    this.#options = options;
  }

  /** The plain server that both share. `apis` gets what is nobody else's. */
  createServer(apis: Apis): Server {
    this.#apis = apis;
    const server = http.createServer(this.#serverOptions(apis));
    this.#serve(server);
    this.#plain = server;
    server.once("listening", () => this.#isListening.resolve(server.address() as AddressInfo));
    return server;
  }

  /**
   * Asks for a path of a site as any visitor does, by its name and by way of the plain listener, and sees to it that it
   * is this machine that answers. Throws `VisitFailed` where it is another one, or none. Waits for the listener.
   */
  visit(host: string, path: string, expected: Expected): Promise<{ status: number }> {
    return visit(this.#isListening.promise, { host, path, proof: this.#proof }, expected);
  }

  /** The same by TLS. Answers with the port. */
  async listenTls(address: { host: string; port: number; fd?: number }): Promise<number | undefined> {
    const { certificates } = this.#options;
    if (certificates === null || this.#apis === undefined) return undefined;
    const server = https.createServer({
      ...this.#serverOptions(this.#apis),
      minVersion: "TLSv1.2",
      ALPNProtocols: ["http/1.1"],
      SNICallback: callbackify((name: string) => certificates.contextFor(name)),
      ...(await certificates.nameless()),
    });
    this.#serve(server);
    server.on("clientError", this.#apis.clientError);
    // Somebody who does not trust us, or speaks something else.
    server.on("tlsClientError", (_error, socket) => socket.destroy());
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(address, resolve);
    });
    this.#tls = server;
    return (server.address() as AddressInfo).port;
  }

  /** Whether somebody should vouch for the name: it leads somewhere at this moment. */
  async isServed(host: string): Promise<boolean> {
    return host === this.#options.apiHost || ((await this.#siteAt(host)?.exists()) ?? false);
  }

  /** From now on every answer is the last on its connection: clients go, before their connections are closed under them. */
  startDraining(): void {
    for (const server of [this.#plain, this.#tls]) {
      server?.prependListener("request", (_request, response) => (response.shouldKeepAlive = false));
    }
  }

  /** Ends what has no end of its own, waits `graceMs` for answers under way, and cuts what is left. */
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
      // HTTP/2 over plain text would be a connection whose requests nobody here reads.
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
    if (!visitor.isOurs && this.#isElsewhere(request, response, host)) return;
    const site = this.#siteAt(host);
    if (site === undefined) {
      if (visitor.hsts) response.setHeader("Strict-Transport-Security", "max-age=31536000");
      this.#apis?.handle(request, response);
      return;
    }
    response.on("error", () => {});
    response.once("close", () => hearOut(request));
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
    return this.#options.domains.some((domain) => host.endsWith(`.${domain}`)) ? nobody : undefined;
  }

  /** By plain HTTP, where names are served by HTTPS alone: the authority's visit is answered, everybody else sent on. */
  #isElsewhere(request: IncomingMessage, response: ServerResponse, host: string): boolean {
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
    // A word of 256 random bits is found by nobody who compares how long we took.
    const isOurs = request.headers[visitHeader] === this.#proof;
    if (!this.#options.trustedProxies.check(peer, isIPv6(peer) ? "ipv6" : "ipv4")) {
      return { forwardedFor: peer, isSecure, hsts, isOurs };
    }
    const before = [request.headers["x-forwarded-for"]].flat().join(", ");
    return {
      forwardedFor: before === "" ? peer : `${before}, ${peer}`,
      isSecure: isSecure || request.headers["x-forwarded-proto"] === "https",
      hsts,
      isOurs,
    };
  }
}

/** A name of ours that leads nowhere. */
const nobody: Site = {
  exists: async () => false,
  handle: async ({ request, response, visitor }) => sendPage(request, response, "not_found", visitor),
};

function isTls(request: IncomingMessage): boolean {
  return (request.socket as Partial<TLSSocket>).encrypted === true;
}

/** Closing under a client that still writes would break its pipe: it would never read why. */
function hearOut(request: IncomingMessage): void {
  if (!hasBody(request) || request.complete || request.socket.destroyed) return;
  request.removeAllListeners("data");
  request.resume();
  const cut = setTimeout(() => request.socket.destroy(), lingerMs);
  request.once("end", () => clearTimeout(cut));
  request.socket.once("close", () => clearTimeout(cut));
}
