/**
 * The host's end of a machine's unix socket. The guest dials in and keeps a spare connection here; `take()` hands one
 * out for one request. There is nothing to reconnect: when this process restarts and listens on the same path, the
 * guest is back within milliseconds.
 *
 * The guest is not trusted. It may hold at most `MAX_SPARES` idle connections, which must be silent, and
 * `MAX_CONNECTIONS` in all; what is more is closed. Dialling that leads to nothing, over and over, would cost this
 * process its time: past `MAX_WASTED` in a second the socket is taken away for a second, and the kernel refuses.
 */
import { EventEmitter } from "node:events";
import { chown, rm } from "node:fs/promises";
import { createServer } from "node:net";
import type { Server, Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { RuntimeError } from "../driver.ts";

const MAX_SPARES = 2;
const MAX_CONNECTIONS = 1024;
/** A guest re-dials within 50 ms; past a second of silence it is not coming. */
const GONE_AFTER_MS = 1000;
const TAKE_MS = 5000;
/** How long a machine may be held while others wait for it: as long as gigabytes take to be written. */
const SUSPENDED_MS = 60_000;
/** What is under way at a suspension gets this long to end by itself: most calls are shorter. */
const DRAIN_MS = 250;
const DRAIN_LOOK_MS = 5;
/** Connections per second that end untaken. An honest guest has one, when it dies. */
const MAX_WASTED = 200;
const PAUSE_MS = 1000;

interface Waiter {
  resolve: (socket: Socket) => void;
  reject: (error: Error) => void;
  timer: NodeJS.Timeout;
}

/** Events: `gone` once each time the guest went away and stayed away; `back` when it dialled in again after that. */
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
  /** Ended by `suspend`, and by nobody's fault. */
  readonly #cut = new WeakSet<Socket>();
  #wasted = { since: 0, count: 0 };
  #pauseTimer: NodeJS.Timeout | undefined;

  /** `owner`: the one user of the host's, beside root, who may dial; where absent, root alone. */
  constructor(path: string, owner?: number) {
    super();
    this.path = path;
    this.#owner = owner;
  }

  /** Listens, in place of whatever an earlier process left at the path. */
  async listen(): Promise<void> {
    if (this.#server) return;
    this.#isGone = false;
    this.#isSuspended = false;
    this.#server = await this.#open();
  }

  async #open(): Promise<Server> {
    await rm(this.path, { force: true });
    // Half-open: a tunnel's one direction may end before the other.
    const server = createServer({ allowHalfOpen: true }, (socket) => this.#accept(socket));
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(this.path, resolve);
    });
    // A dial in between is refused, and tried again.
    if (this.#owner !== undefined) await chown(this.path, this.#owner, this.#owner);
    return server;
  }

  /** Whether the guest has an idle connection here. */
  get isReady(): boolean {
    return this.#spares.length > 0;
  }

  /**
   * A connection for one request; the caller owns and destroys it. Waits for the guest to dial in where there is no
   * spare. Fails with `timeout`, or with `machine_died` once the guest is known to be gone.
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
          reject(new RuntimeError("timeout", "the machine did not dial in"));
        },
        timeoutMs + (this.#isSuspended ? SUSPENDED_MS : 0),
      );
      const waiter: Waiter = { resolve, reject, timer };
      this.#waiters.push(waiter);
    });
  }

  /** Why a connection that was taken ended in mid-speech, as the error for whoever spoke on it. */
  endOf(socket: Socket): RuntimeError {
    if (this.#cut.has(socket))
      return new RuntimeError("interrupted", "the machine was written down while the call was under way");
    this.suspect();
    return new RuntimeError("machine_died", "the machine's guest hung up");
  }

  /** Told by whoever saw a connection end in mid-speech: unless the guest dials in within a second, it is gone. */
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
   * Stops listening, removes the socket's file and ends every connection: nothing of the host is left inside, which
   * is what a checkpoint needs. `listen()` may follow.
   */
  async close(): Promise<void> {
    this.#isSuspended = false;
    await this.#hangUp();
    this.#rejectWaiters(new RuntimeError("not_running", "the machine was disconnected"));
  }

  /**
   * The same for a moment: who asks waits for the next `listen`, and what is under way ends with `interrupted` where it
   * is not over soon.
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
    // Node unlinks the path itself, when it closes a server that listened on one.
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
    // The error itself is of no interest: `close` follows, and that is what ends a connection's use.
    socket.on("error", () => {});
    socket.once("close", () => this.#all.delete(socket));
    this.#dialledIn();
    const waiter = this.#isSuspended ? undefined : this.#waiters.shift();
    if (waiter) {
      clearTimeout(waiter.timer);
      waiter.resolve(socket);
      return;
    }
    this.#keep(socket);
  }

  #dialledIn(): void {
    clearTimeout(this.#goneTimer);
    this.#goneTimer = undefined;
    if (!this.#isGone) return;
    this.#isGone = false;
    this.emit("back");
  }

  #keep(socket: Socket): void {
    this.#spares.push(socket);
    // Reading is how an end is noticed; a spare that says something before it is asked is not a spare.
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

  /** The connections that are taken go on. */
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
    // Where it cannot be opened again nobody dials in, and the guest counts as gone.
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
