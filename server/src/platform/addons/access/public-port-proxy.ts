/**
 * Listeners on the ports of public add-ons. Each forwards bytes to the add-on's machine, with backpressure. The
 * database checks the password. To slow down password guessing, the number of connections and the rate of new ones are
 * bounded.
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
/** A pool may open all its connections at once; password guessing is slow. */
const burst = 50;
const perSecond = 10;
const startsWithinMs = 10_000;
/** Without bytes in either direction for this long, a connection is closed as dead or unused. */
const idleMs = 60 * 60_000;
const keepAliveMs = 60_000;
const tryAgainMs = 5_000;

export interface PublicPort {
  kind: Kind;
  port: number;
  /** Connects to the database; rejects while it is down. */
  connect(): Promise<Duplex>;
}

/** Returns the certificate for a name; undefined if there is none. */
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

  /** Sets the add-on's only public port, or closes it with undefined. */
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

  /** Retries while the port is taken by another program, for example. */
  #failed(error: Error): void {
    // An error of a listening socket, such as too many open files, does not close it.
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
      // Either side closed the connection, or the database is down: the client sees its connection end.
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
