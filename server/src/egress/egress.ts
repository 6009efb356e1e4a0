/**
 * The way out of a `restricted` machine: one HTTP proxy for all of them, and a resolver beside it. A machine is known
 * by the address its packets come from, never by what it says; what it may reach is its owner's allowlist, by name.
 *
 * A name is resolved here, every address it has is judged, and the connection goes to an address that was judged.
 * HTTPS goes through CONNECT and only under the name that was asked for (the TLS server name is read, nothing else);
 * plain HTTP is read, judged and written anew. A redirect is the client's next request and is judged like any other.
 * What is refused is refused at once, says why, and is counted.
 *
 * It never decides who has which list: `allowlistOf` is handed in. It keeps nothing that outlives the process: with it
 * go the connections, and machines dial again.
 */
import type dgram from "node:dgram";
import http from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { type Client, Clients, type TellDenied } from "./clients.ts";
import { Denial, targetText } from "./denials.ts";
import { Names } from "./destination.ts";
import { forward } from "./forward.ts";
import { openResolver } from "./resolver.ts";
import { tunnel } from "./tunnel.ts";

export interface EgressOptions {
  /** The list of the machine's owner, as it was written; undefined where there is no such machine. */
  allowlistOf: (machine: string) => Promise<readonly string[] | undefined>;
  /** Resolvers; null: the host's own. */
  dnsServers: readonly string[] | null;
  /** Names, addresses and ranges that may be reached though they are not of the public internet. */
  privateHosts: readonly string[];
  /** Called for each connection or name that is refused; `target` is `host:port`, or a name that was looked up. */
  denied?: (machine: string, denied: { target: string; code: string }) => void;
  log: (event: string, fields: Record<string, unknown>) => void;
}

const MAX_HEADER_BYTES = 16_384;
const HEADERS_TIMEOUT_MS = 10_000;
/** A body that stops coming, or is not read, for this long ends its connection. */
const IDLE_MS = 10 * 60_000;

export class Egress {
  readonly #options: EgressOptions;
  readonly #names: Names;
  /** Whose each connection is. */
  readonly #clientOf = new WeakMap<Socket, Client>();
  /** Connections that have had their one request. */
  readonly #served = new WeakSet<Socket>();
  /** The host of the CONNECT that a connection came through. */
  readonly #tunnelled = new WeakMap<Socket, string>();
  #clients: Clients | undefined;
  #proxy: http.Server | undefined;
  #resolver: dgram.Socket | undefined;

  constructor(options: EgressOptions) {
    this.#options = options;
    this.#names = new Names({ servers: options.dnsServers, privateHosts: options.privateHosts });
  }

  /** Listens on free ports of `address` and answers them. `machineAt` says which machine has an address. */
  async open(
    address: string,
    machineAt: (address: string) => string | undefined,
  ): Promise<{ proxyPort: number; dnsPort: number }> {
    const clients = new Clients({ machineAt, allowlistOf: this.#options.allowlistOf });
    const denied: TellDenied = (client, denial, target) => this.#denied(client, denial, target);
    this.#clients = clients;

    // Inside a tunnel to port 80: the same server without CONNECT.
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

  /** The machine at this address is restricted no more: whatever it has open ends, and its count begins anew. */
  shut(address: string): void {
    this.#clients?.shut(address);
  }

  /** Applies a changed list to the machine, also to its open connections. */
  async reload(machine: string): Promise<void> {
    await this.#clients?.reload(machine);
  }

  /** Refusals since the machine at this address was let in. */
  deniedCount(address: string): number {
    return this.#clients?.deniedCount(address) ?? 0;
  }

  async close(): Promise<void> {
    const proxy = this.#proxy;
    const resolver = this.#resolver;
    this.#proxy = undefined;
    this.#resolver = undefined;
    this.#clients?.shutAll();
    if (proxy !== undefined) await new Promise((resolve) => proxy.close(resolve));
    if (resolver !== undefined) await new Promise<void>((resolve) => resolver.close(() => resolve()));
  }

  #server(): http.Server {
    const server = http.createServer({
      maxHeaderSize: MAX_HEADER_BYTES,
      headersTimeout: HEADERS_TIMEOUT_MS,
      // A large upload may take hours; what stands still ends by the idle time.
      requestTimeout: 0,
      insecureHTTPParser: false,
    });
    server.setTimeout(IDLE_MS, (socket: Socket) => socket.destroy());
    server.on("request", (request, response) => {
      // The parser reads ahead: without this a client could begin thousands of requests with one packet.
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
      const denied: TellDenied = (of, denial, target) => this.#denied(of, denial, target);
      void forward(
        { names: this.#names, denied },
        client,
        request,
        response,
        this.#tunnelled.get(request.socket),
      );
    });
    server.on("clientError", (_error, socket) => {
      socket.end(new Denial("bad_request", "this is no HTTP/1.1 request.").bytes);
      socket.on("error", () => {}).resume();
      setTimeout(() => socket.destroy(), 1_000).unref();
    });
    return server;
  }

  #denied(client: Client, denial: Denial, target: string | undefined): void {
    if (denial.isRefusal) client.refused();
    if (denial.isRefusal && target !== undefined) {
      this.#options.denied?.(client.machine, { target: targetText(target), code: denial.code });
    }
    this.#options.log("egress_denied", { machine: client.machine, code: denial.code, why: denial.message });
  }
}
