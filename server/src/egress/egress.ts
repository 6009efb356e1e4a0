/**
 * The egress of `restricted` machines: an HTTP proxy for all of them, and a DNS resolver. A machine is identified by
 * the source address of its packets, never by their content. A machine may reach the host names on its owner's
 * allowlist.
 *
 * The proxy resolves a name, checks all its addresses, and connects to a checked address. HTTPS goes through CONNECT,
 * and only with the requested host as TLS server name; the rest of TLS is not read. Plain HTTP is parsed, checked and
 * written anew. A redirect leads to a new request of the client, which is checked like any other. A denial is
 * immediate, has a reason, and is counted.
 *
 * `allowlistOf` decides which machine has which list. Nothing outlives the process: its connections close, and machines
 * connect again.
 */
import type dgram from "node:dgram";
import http from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { type Client, Clients, type OnDenied } from "./clients.ts";
import { Denial, targetText } from "./denials.ts";
import { AllowedNameResolver } from "./destination.ts";
import { forward } from "./forward.ts";
import { openResolver } from "./resolver.ts";
import { tunnel } from "./tunnel.ts";

export interface EgressOptions {
  /** Returns the unparsed list of the machine's owner. Undefined if the machine does not exist. */
  allowlistOf: (machine: string) => Promise<readonly string[] | undefined>;
  /** DNS resolvers. Null for the host's own. */
  dnsServers: readonly string[] | null;
  /** Names, addresses and ranges outside the public internet that machines may reach. */
  privateHosts: readonly string[];
  /** Called for each denied connection or name. `target` is `host:port`, or the name of a DNS query. */
  denied?: (machine: string, denied: { target: string; code: string }) => void;
  log: (event: string, fields: Record<string, unknown>) => void;
}

const MAX_HEADER_BYTES = 16_384;
const HEADERS_TIMEOUT_MS = 10_000;
/** Idle timeout: a connection ends when its body makes no progress for this time. */
const IDLE_MS = 10 * 60_000;

export class Egress {
  readonly #options: EgressOptions;
  readonly #names: AllowedNameResolver;
  /** The machine of each connection. */
  readonly #clientOf = new WeakMap<Socket, Client>();
  /** Connections that have had their only request. */
  readonly #served = new WeakSet<Socket>();
  /** The host of the CONNECT that a connection came through. */
  readonly #tunnelled = new WeakMap<Socket, string>();
  #clients: Clients | undefined;
  #proxy: http.Server | undefined;
  #resolver: dgram.Socket | undefined;

  constructor(options: EgressOptions) {
    this.#options = options;
    this.#names = new AllowedNameResolver({
      servers: options.dnsServers,
      privateHosts: options.privateHosts,
    });
  }

  /** Listens on free ports of `address`. `machineAt` returns the machine at an address. */
  async open(
    address: string,
    machineAt: (address: string) => string | undefined,
  ): Promise<{ proxyPort: number; dnsPort: number }> {
    const clients = new Clients({ machineAt, allowlistOf: this.#options.allowlistOf });
    const denied: OnDenied = (client, denial, target) => this.#denied(client, denial, target);
    this.#clients = clients;

    // Serves requests inside a tunnel to port 80: the same server without CONNECT.
    const inner = this.#server();
    const serveHttp = (socket: Socket, client: Client, name: string) => {
      this.#clientOf.set(socket, client);
      this.#tunnelled.set(socket, name);
      inner.emit("connection", socket);
    };
    const proxy = this.#server();
    proxy.on("connection", (socket: Socket) => {
      const client = clients.admit(socket);
      if (client !== undefined) this.#clientOf.set(socket, client);
    });
    proxy.on("connect", (request, stream, head) => {
      const socket = stream as Socket;
      const client = this.#clientOf.get(socket);
      if (client === undefined || this.#served.has(socket)) socket.destroy();
      else void tunnel({ names: this.#names, serveHttp, denied }, client, request, socket, head);
    });
    this.#proxy = proxy;
    await new Promise<void>((resolve, reject) => {
      proxy.once("error", reject);
      proxy.listen(0, address, resolve);
    });
    this.#resolver = await openResolver({ clients, names: this.#names, denied }, address);
    return {
      proxyPort: (proxy.address() as AddressInfo).port,
      dnsPort: this.#resolver.address().port,
    };
  }

  /** Closes all connections of a machine that is no longer restricted, and resets its count. */
  closeConnections(address: string): void {
    this.#clients?.closeConnections(address);
  }

  /** Applies a changed list to the machine, its open connections included. */
  async reload(machine: string): Promise<void> {
    await this.#clients?.reload(machine);
  }

  /** Number of denials since the machine at this address was admitted. */
  deniedCount(address: string): number {
    return this.#clients?.deniedCount(address) ?? 0;
  }

  async close(): Promise<void> {
    const proxy = this.#proxy;
    const resolver = this.#resolver;
    this.#proxy = undefined;
    this.#resolver = undefined;
    this.#clients?.closeAllConnections();
    if (proxy !== undefined) await new Promise((resolve) => proxy.close(resolve));
    if (resolver !== undefined) await new Promise<void>((resolve) => resolver.close(() => resolve()));
  }

  #server(): http.Server {
    const server = http.createServer({
      maxHeaderSize: MAX_HEADER_BYTES,
      headersTimeout: HEADERS_TIMEOUT_MS,
      // A large upload may take hours. The idle timeout ends a stalled upload.
      requestTimeout: 0,
      insecureHTTPParser: false,
    });
    server.setTimeout(IDLE_MS, (socket: Socket) => socket.destroy());
    server.on("request", (request, response) => {
      // The parser reads ahead: without this check, a client could start thousands of requests with a single packet.
      if (this.#served.has(request.socket)) {
        request.socket.pause();
        return;
      }
      this.#served.add(request.socket);
      const client = this.#clientOf.get(request.socket);
      if (client === undefined) {
        request.socket.destroy();
        return;
      }
      response.on("error", () => {});
      const denied: OnDenied = (of, denial, target) => this.#denied(of, denial, target);
      void forward(
        { names: this.#names, denied },
        client,
        request,
        response,
        this.#tunnelled.get(request.socket),
      );
    });
    server.on("clientError", (_error, socket) => {
      socket.end(new Denial("bad_request", "this is not an HTTP/1.1 request; send plain HTTP/1.1.").bytes);
      socket.on("error", () => {}).resume();
      setTimeout(() => socket.destroy(), 1_000).unref();
    });
    return server;
  }

  #denied(client: Client, denial: Denial, target: string | undefined): void {
    if (denial.isRefusal) client.countDenial();
    if (denial.isRefusal && target !== undefined) {
      this.#options.denied?.(client.machine, { target: targetText(target), code: denial.code });
    }
    this.#options.log("egress_denied", { machine: client.machine, code: denial.code, why: denial.message });
  }
}
