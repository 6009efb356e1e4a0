/**
 * The machines that use the proxy. A machine is identified by the source address of its packets, which the host's rules
 * protect from forgery. Holds each machine's open connections, so that all can be closed at once, and counts its
 * denials.
 */
import type { Socket } from "node:net";
import { type Entry, isAllowed, parseEntries } from "./allowlist.ts";
import { Denial } from "./denials.ts";
import { requireAllowedName } from "./destination.ts";

/** Maximum of open connections of a machine: npm opens about fifty, a browser a few hundred. */
const MAX_CONNECTIONS_PER_MACHINE = 256;
/** Maximum of open connections of all machines. Each connection uses two of the server's 65,536 or more descriptors. */
const MAX_CONNECTIONS = 8192;

export interface ClientDeps {
  machineAt: (address: string) => string | undefined;
  /** Returns the machine's own unparsed list. Undefined if the machine does not exist. */
  allowlistOf: (machine: string) => Promise<readonly string[] | undefined>;
}

export class Clients {
  readonly #deps: ClientDeps;
  readonly #byAddress = new Map<string, Client>();
  #connections = 0;

  constructor(deps: ClientDeps) {
    this.#deps = deps;
  }

  /** Returns the machine at this address. Undefined if there is none. */
  at(address: string): Client | undefined {
    const machine = this.#deps.machineAt(address);
    const known = this.#byAddress.get(address);
    if (known?.machine === machine) return known;
    this.closeConnections(address);
    if (machine === undefined) return undefined;
    const client = new Client(machine, this.#deps.allowlistOf);
    this.#byAddress.set(address, client);
    return client;
  }

  /** Admits a new connection of a machine. Without a free slot, resets the connection and returns undefined. */
  admit(socket: Socket): Client | undefined {
    const client = this.at(socket.remoteAddress ?? "");
    if (
      client === undefined ||
      client.connections >= MAX_CONNECTIONS_PER_MACHINE ||
      this.#connections >= MAX_CONNECTIONS
    ) {
      client?.countDenial();
      socket.resetAndDestroy();
      return undefined;
    }
    this.#connections += 1;
    client.connections += 1;
    client.track(socket);
    socket.once("close", () => {
      this.#connections -= 1;
      client.connections -= 1;
    });
    return client;
  }

  closeConnections(address: string): void {
    this.#byAddress.get(address)?.end();
    this.#byAddress.delete(address);
  }

  /** Reads the machine's allowlist again, and closes its connections to hosts that are no longer allowed. */
  async reload(machine: string): Promise<void> {
    const clients = [...this.#byAddress.values()].filter((client) => client.machine === machine);
    await Promise.all(clients.map((client) => client.reload()));
  }

  closeAllConnections(): void {
    for (const address of this.#byAddress.keys()) this.closeConnections(address);
  }

  deniedCount(address: string): number {
    return this.#byAddress.get(address)?.denied ?? 0;
  }
}

/** `target`: `host:port`, or the name of a DNS query. Absent if unknown. */
export type OnDenied = (client: Client, denial: Denial, target?: string) => void;

export class Client {
  readonly machine: string;
  connections = 0;
  questions = 0;
  denied = 0;
  readonly #allowlistOf: ClientDeps["allowlistOf"];
  readonly #sockets = new Set<Socket>();
  /** Destination of each connection that was checked against the allowlist. */
  readonly #destinations = new Map<Socket, { name: string; port: number }>();
  readonly #gone = new AbortController();
  #allowed: Promise<readonly Entry[]> | undefined;

  constructor(machine: string, allowlistOf: ClientDeps["allowlistOf"]) {
    this.machine = machine;
    this.#allowlistOf = allowlistOf;
  }

  /** Aborts when the machine is removed or no longer restricted. */
  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  /** Returns the allowlist. The list is read once, and again after each change. */
  async allowed(): Promise<readonly Entry[]> {
    for (;;) {
      const reading = (this.#allowed ??= this.#read());
      const list = await reading;
      // The list changed during the read, so it is read again.
      if (this.#allowed === reading) return list;
    }
  }

  /** Checks a connection's destination. A later change of the list closes it if the host is no longer allowed. */
  async checkDestination(socket: Socket, host: string, port: number): Promise<string> {
    for (;;) {
      const reading = (this.#allowed ??= this.#read());
      const list = await reading;
      if (this.#allowed !== reading) continue;
      const name = requireAllowedName(list, host, port);
      // There is no await after the comparison, so either `reload` sees this connection, or the list is the new one.
      if (!this.#destinations.has(socket)) socket.once("close", () => this.#destinations.delete(socket));
      this.#destinations.set(socket, { name, port });
      return name;
    }
  }

  /** An unreadable list allows nothing: all connections close, and the next connection reads the list again. */
  async reload(): Promise<void> {
    this.#allowed = undefined;
    const list = await this.allowed().catch((): readonly Entry[] => []);
    for (const [socket, { name, port }] of this.#destinations) {
      if (!isAllowed(list, name, port)) socket.destroy();
    }
  }

  countDenial(): void {
    this.denied += 1;
  }

  /** Closes the socket when the machine ends. */
  track(socket: Socket): void {
    if (this.#gone.signal.aborted) {
      socket.destroy();
      return;
    }
    this.#sockets.add(socket);
    socket.once("close", () => this.#sockets.delete(socket));
  }

  end(): void {
    this.#gone.abort();
    for (const socket of this.#sockets) socket.destroy();
  }

  async #read(): Promise<readonly Entry[]> {
    try {
      const list = await this.#allowlistOf(this.machine);
      if (list === undefined) throw new Denial("not_restricted");
      return parseEntries(list);
    } catch (error) {
      // The next connection reads the list again.
      this.#allowed = undefined;
      throw error instanceof Denial ? error : new Denial("unavailable");
    }
  }
}
