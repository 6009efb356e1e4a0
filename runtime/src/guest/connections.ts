/**
 * The host's end of a machine's unix socket. The guest connects and keeps a spare connection here; `take()`
 * returns it for one request. No reconnect is needed: when this process restarts and listens on the same
 * path, the guest connects within milliseconds.
 *
 * The guest is not trusted. A guest may keep at most `MAX_SPARES` idle connections, which must be silent, and
 * `MAX_CONNECTIONS` in all. Further connections are closed. Endless dialling would cost this process its time. So after
 * `MAX_WASTED` unused connections in a second, the socket is removed for a second, and the kernel refuses.
 */
import { EventEmitter } from "node:events";
import { chown, rm } from "node:fs/promises";
import { createServer } from "node:net";
import type { Server, Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "../driver.ts";

const MAX_SPARES = 2;
const MAX_CONNECTIONS = 1024;
/** Silence after which a guest counts as gone. A guest reconnects within 50 ms. */
const GONE_AFTER_MS = 1000;
const TAKE_MS = 5000;
/** Limit of a suspension, during which calls wait for the machine: the time to write gigabytes. */
const SUSPENDED_MS = 60_000;
/** Time in which requests in flight may end by themselves at a suspension: most calls are shorter. */
const DRAIN_MS = 250;
const DRAIN_LOOK_MS = 5;
/**
 * Limit of connections per second that end without a request. An honest guest has one such connection, when it dies.
 */
const MAX_WASTED = 200;
const PAUSE_MS = 1000;

interface Waiter {
  resolve: (socket: Socket) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

/**
 * Events: `gone` once each time the guest has disconnected and stays away; `back` when it connects again
 * afterwards.
 */
export class GuestConnections extends EventEmitter<{ gone: []; back: [] }> {
  readonly path: string;
  readonly #owner: number | undefined;
  #server: Server | undefined;
  #all = new Set<Socket>();
  #spares: Socket[] = [];
  #waiters: Waiter[] = [];
  #goneTimer: NodeJS.Timeout | undefined;
  #isGone = false;
  #isSuspended = false;
  /** Connections that `suspend` ended. */
  readonly #cut = new WeakSet<Socket>();
  #wasted = { since: 0, count: 0 };
  #pauseTimer: NodeJS.Timeout | undefined;

  /** `owner`: the only user of the host besides root that may connect. Without `owner`, only root may connect. */
  constructor(path: string, owner?: number) {
    super();
    this.path = path;
    this.#owner = owner;
  }

  /** Listens at the path, and replaces a socket of an earlier process. */
  async listen(): Promise<void> {
    if (this.#server) return;
    this.#isGone = false;
    this.#isSuspended = false;
    this.#server = await this.#open();
  }

  async #open(): Promise<Server> {
    await rm(this.path, { force: true });
    // Half-open: one direction of a tunnel may end before the other.
    const server = createServer({ allowHalfOpen: true }, (socket) => this.#accept(socket));
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(this.path, resolve);
    });
    // A connection before this change of owner is refused and retried.
    if (this.#owner !== undefined) await chown(this.path, this.#owner, this.#owner);
    return server;
  }

  /** True if the guest has an idle connection to this process. */
  get isReady(): boolean {
    return this.#spares.length > 0;
  }

  /**
   * Returns a connection for one request, which the caller owns and destroys. Without a spare, waits until
   * the guest connects. Fails with `timeout`, or with `machine_died` once the guest is known to be gone.
   */
  take(timeoutMs: number = TAKE_MS): Promise<Socket> {
    const spare = this.#isSuspended ? undefined : this.#spares.shift();
    if (spare) return Promise.resolve(this.#release(spare));
    if (!this.#server && !this.#isSuspended)
      return Promise.reject(new RuntimeError("not_running", "the machine is not connected"));
    if (this.#isGone) return Promise.reject(new RuntimeError("machine_died", "the machine's guest is gone"));
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => {
          this.#waiters = this.#waiters.filter((other) => other !== waiter);
          reject(new RuntimeError("timeout", "the machine did not connect in time"));
        },
        timeoutMs + (this.#isSuspended ? SUSPENDED_MS : 0),
      );
      const waiter: Waiter = { resolve, reject, timer };
      this.#waiters.push(waiter);
    });
  }

  /** Returns the error for a connection in use that ended early. */
  endOf(socket: Socket): RuntimeError {
    if (this.#cut.has(socket))
      return new RuntimeError("interrupted", "a checkpoint of the machine interrupted the call");
    this.suspect();
    return new RuntimeError("machine_died", "the machine's guest closed the connection");
  }

  /** Called when a connection ended early. Unless the guest connects within a second, it counts as gone. */
  suspect(): void {
    if (!this.#server || this.#isGone || this.#goneTimer || this.#spares.length > 0) return;
    this.#goneTimer = setTimeout(() => {
      this.#goneTimer = undefined;
      this.#isGone = true;
      this.#rejectWaiters(new RuntimeError("machine_died", "the machine's guest is gone"));
      this.emit("gone");
    }, GONE_AFTER_MS);
  }

  /**
   * Stops listening, removes the socket's file and ends every connection. The machine then has no connection to the
   * host, as a checkpoint requires. `listen()` may follow.
   */
  async close(): Promise<void> {
    this.#isSuspended = false;
    await this.#hangUp();
    this.#rejectWaiters(new RuntimeError("not_running", "the machine was disconnected"));
  }

  /**
   * Closes the socket for a short time: new calls wait for the next `listen`. Requests in flight end with `interrupted`
   * unless they end soon.
   */
  async suspend(): Promise<void> {
    this.#isSuspended = true;
    const latest = performance.now() + DRAIN_MS;
    while (this.#all.size > this.#spares.length && performance.now() < latest) await sleep(DRAIN_LOOK_MS);
    for (const socket of this.#all) this.#cut.add(socket);
    await this.#hangUp();
  }

  async #hangUp(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    clearTimeout(this.#goneTimer);
    clearTimeout(this.#pauseTimer);
    this.#goneTimer = undefined;
    this.#pauseTimer = undefined;
    this.#spares = [];
    for (const socket of this.#all) socket.destroy();
    // Node unlinks the path itself when it closes a server that listened there.
    if (server) await new Promise<void>((resolve) => server.close(() => resolve()));
  }

  #accept(socket: Socket): void {
    if (!this.#server || this.#all.size >= MAX_CONNECTIONS || this.#spares.length >= MAX_SPARES) {
      socket.on("error", () => {});
      socket.destroy();
      this.#waste();
      return;
    }
    this.#all.add(socket);
    // The error is ignored: `close` follows, and ends the use of the connection.
    socket.on("error", () => {});
    socket.once("close", () => this.#all.delete(socket));
    this.#onDial();
    const waiter = this.#isSuspended ? undefined : this.#waiters.shift();
    if (waiter) {
      clearTimeout(waiter.timer);
      waiter.resolve(socket);
      return;
    }
    this.#keep(socket);
  }

  #onDial(): void {
    clearTimeout(this.#goneTimer);
    this.#goneTimer = undefined;
    if (!this.#isGone) return;
    this.#isGone = false;
    this.emit("back");
  }

  #keep(socket: Socket): void {
    this.#spares.push(socket);
    // Reading detects the end of a connection. A spare that sends before a request is not valid.
    socket.on("readable", onSpareReadable);
    socket.on("end", onSpareEnd);
    socket.once("close", () => {
      const index = this.#spares.indexOf(socket);
      if (index < 0) return;
      this.#spares.splice(index, 1);
      this.suspect();
      this.#waste();
    });
  }

  #waste(): void {
    if (Date.now() - this.#wasted.since > 1000) this.#wasted = { since: Date.now(), count: 0 };
    if (++this.#wasted.count > MAX_WASTED) this.#pause();
  }

  /** Stops listening. Connections in use continue. */
  #pause(): void {
    const server = this.#server;
    if (!server || this.#pauseTimer) return;
    server.close();
    for (const spare of this.#spares) spare.destroy();
    const reopen = async (): Promise<void> => {
      const next = await this.#open();
      if (this.#server === server) this.#server = next;
      else next.close();
      this.#pauseTimer = undefined;
    };
    // If the socket cannot be opened again, no guest can connect, so the guest counts as gone.
    this.#pauseTimer = setTimeout(() => void reopen().catch(() => this.suspect()), PAUSE_MS);
  }

  #release(socket: Socket): Socket {
    socket.off("readable", onSpareReadable);
    socket.off("end", onSpareEnd);
    return socket;
  }

  #rejectWaiters(error: Error): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const waiter of waiters) {
      clearTimeout(waiter.timer);
      waiter.reject(error);
    }
  }
}

function onSpareReadable(this: Socket): void {
  if (this.read() !== null) this.destroy();
}

function onSpareEnd(this: Socket): void {
  this.destroy();
}
