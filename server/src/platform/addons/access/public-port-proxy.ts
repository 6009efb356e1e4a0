/**
 * The ports by which public add-ons are reached from outside: a listener for each, which hands what comes to its
 * machine, byte by byte, with the machine's own pace. It asks for no password: the database does. It sees to it that
 * nobody can try many: connections are bounded, and so is how many begin in a second.
 */
import { createServer, type Server, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { pipeline } from "node:stream/promises";
import type { SecureContext } from "node:tls";
import type { Logger } from "pino";
import type { Config } from "#config.ts";
import { encrypted } from "../engines/tls.ts";
import type { Kind } from "../engines/engine.ts";
import { needsTls, publicName } from "./public-ports.ts";

const maxConnections = 200;
/** A pool that opens all of its connections at once is served; who guesses passwords is slow. */
const burst = 50;
const perSecond = 10;
const startsWithinMs = 10_000;
/** Nothing either way for this long: the other side is gone, or has no use for it. */
const idleMs = 60 * 60_000;
const keepAliveMs = 60_000;
const tryAgainMs = 5_000;

export interface Door {
  kind: Kind;
  port: number;
  /** To the database; fails where it does not run. */
  connect(): Promise<Duplex>;
}

/** Who vouches for us; undefined where nobody does. */
export type FindContext = (name: string) => Promise<SecureContext | undefined>;

export class Doors {
  readonly #config: Config;
  readonly #log: Logger;
  readonly #open = new Map<string, OpenDoor>();
  #findContext: FindContext = async () => undefined;

  constructor({ config, log }: { config: Config; log: Logger }) {
    this.#config = config;
    this.#log = log;
  }

  encryptWith(findContext: FindContext): void {
    this.#findContext = findContext;
  }

  /** That one and no other leads to this add-on when this returns; undefined: none does. */
  set(id: string, door: Door | undefined): void {
    const there = this.#open.get(id);
    if (there && there.door.port === door?.port) return;
    there?.close();
    this.#open.delete(id);
    if (!door) return;
    const opened = new OpenDoor(door, {
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

class OpenDoor {
  readonly door: Door;
  readonly #deps: { config: Config; log: Logger; findContext: FindContext };
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #allowance = burst;
  #filledAt = performance.now();
  #retry: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(door: Door, deps: { config: Config; log: Logger; findContext: FindContext }) {
    this.door = door;
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
    this.#server.listen({ host: this.#deps.config.addonsHost, port: this.door.port });
  }

  /** Another program has the port, say: until it has not. */
  #failed(error: Error): void {
    // What befalls one that listens, such as too many open files, closes nothing.
    if (this.#isClosed || this.#server.listening) return;
    this.#deps.log.warn(
      { port: this.door.port, err: error },
      "a public add-on's port could not be opened yet",
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
      const database = await this.door.connect();
      clearTimeout(late);
      socket.setTimeout(idleMs, () => socket.destroy());
      await Promise.all([pipeline(client, database), pipeline(database, client)]);
    } catch {
      // Either side went, or the database does not run: the client sees its connection end.
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
    return context && encrypted(socket, this.door.kind, context);
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
