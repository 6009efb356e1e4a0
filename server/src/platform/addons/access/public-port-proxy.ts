/**
 * Listeners on the ports of public add-ons. Each forwards bytes to the add-on's machine, with backpressure. The
 * database checks the password. The number of connections and the rate of new ones are bounded, to slow down password
 * guessing.
 */
import { createServer, type Server, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { SecureContext } from "node:tls";
import type { Logger } from "pino";
import type { Config } from "#config.ts";
import { acceptTls } from "../engines/tls.ts";
import type { Kind } from "../engines/engine.ts";
import { needsTls, publicName } from "./public-ports.ts";

const maxConnections = 200;
/** Connections that may be opened at once. A connection pool opens all of its connections at the same time. */
const burst = 50;
const perSecond = 10;
const startsWithinMs = 10_000;
/** Time without bytes in either direction after which a connection is closed as dead or unused. */
const idleMs = 60 * 60_000;
const keepAliveMs = 60_000;
const tryAgainMs = 5_000;

export interface PublicPort {
  kind: Kind;
  port: number;
  /** Connects to the database; rejects while the database is down. */
  connect(): Promise<Duplex>;
}

/** Resolves to the certificate for a host name; undefined if there is none. */
export type FindContext = (name: string) => Promise<SecureContext | undefined>;

export class PublicPortProxy {
  readonly #config: Config;
  readonly #log: Logger;
  readonly #open = new Map<string, PortListener>();
  #findContext: FindContext = async () => undefined;

  constructor({ config, log }: { config: Config; log: Logger }) {
    this.#config = config;
    this.#log = log;
  }

  useCertificates(findContext: FindContext): void {
    this.#findContext = findContext;
  }

  /** Opens the add-on's public port in place of an earlier one. Undefined closes the port. */
  set(id: string, publicPort: PublicPort | undefined): void {
    const there = this.#open.get(id);
    if (there && there.publicPort.port === publicPort?.port) return;
    there?.close();
    this.#open.delete(id);
    if (!publicPort) return;
    const opened = new PortListener(publicPort, {
      config: this.#config,
      log: this.#log,
      findContext: (name) => this.#findContext(name),
    });
    this.#open.set(id, opened);
  }

  close(): void {
    for (const opened of this.#open.values()) opened.close();
    this.#open.clear();
  }
}

class PortListener {
  readonly publicPort: PublicPort;
  readonly #deps: { config: Config; log: Logger; findContext: FindContext };
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #allowance = burst;
  #filledAt = performance.now();
  #retry: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(publicPort: PublicPort, deps: { config: Config; log: Logger; findContext: FindContext }) {
    this.publicPort = publicPort;
    this.#deps = deps;
    this.#server = createServer({ allowHalfOpen: true, keepAlive: true, keepAliveInitialDelay: keepAliveMs });
    this.#server.maxConnections = maxConnections;
    this.#server.on("connection", (socket) => void this.#serve(socket));
    this.#server.on("error", (error) => this.#failed(error));
    this.#listen();
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#retry);
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #listen(): void {
    this.#server.listen({ host: this.#deps.config.addonsHost, port: this.publicPort.port });
  }

  /** Retries to listen, for example while another program uses the port. */
  #failed(error: Error): void {
    // A listening socket stays open after an error such as too many open files.
    if (this.#isClosed || this.#server.listening) return;
    this.#deps.log.warn(
      { port: this.publicPort.port, err: error },
      "opening a public add-on's port failed; retrying",
    );
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#listen(), tryAgainMs).unref();
  }

  async #serve(socket: Socket): Promise<void> {
    socket.on("error", () => {});
    if (!this.#mayBegin()) return void socket.destroy();
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
    socket.setNoDelay(true);
    const late = setTimeout(() => socket.destroy(), startsWithinMs);
    try {
      const client = await this.#secured(socket);
      if (!client) return;
      const database = await this.publicPort.connect();
      clearTimeout(late);
      socket.setTimeout(idleMs, () => socket.destroy());
      await Promise.all([pipeline(client, database), pipeline(database, client)]);
    } catch {
      // Either side closed the connection, or the database is down. The client's connection ends below.
    } finally {
      clearTimeout(late);
      if (socket.writableEnded) socket.destroySoon();
      else socket.destroy();
    }
  }

  async #secured(socket: Socket): Promise<Socket | undefined> {
    const { config, findContext } = this.#deps;
    if (!needsTls(config)) return socket;
    const context = await findContext(publicName(config));
    return context && acceptTls(socket, this.publicPort.kind, context);
  }

  #mayBegin(): boolean {
    const now = performance.now();
    this.#allowance = Math.min(burst, this.#allowance + ((now - this.#filledAt) / 1000) * perSecond);
    this.#filledAt = now;
    if (this.#allowance < 1) return false;
    this.#allowance -= 1;
    return true;
  }
}
