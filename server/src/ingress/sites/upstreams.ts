/**
 * Connections to ports inside machines through each machine's own loopback, so that servers on 127.0.0.1 or ::1 are
 * reached too. A connection belongs to one machine for its whole life, and ends with it.
 */
import { Agent, type AgentOptions } from "node:http";
import type { Duplex } from "node:stream";
import { callbackify } from "node:util";

/** Connects to a port of a machine. Fails with `kind: "connection_refused"` if no process listens there. */
export type Connect = (machine: string, port: number) => Promise<Duplex>;

/**
 * Idle timeout of a kept connection. Common servers close a connection after 5 s of idling (Node, uvicorn), so this
 * side closes it before.
 */
const idleMs = 4_000;
const maxIdlePerPort = 16;

export class Upstreams {
  /** Reuses connections, for requests that may be repeated if the connection turns out to be dead. */
  readonly kept: Agent;
  /** Opens a connection for each request, for requests that must not arrive twice. */
  readonly fresh: Agent;
  readonly #connect: Connect;
  readonly #byMachine = new Map<string, Set<Duplex>>();

  constructor(connect: Connect) {
    this.#connect = connect;
    const dial = (machine: string, port: number) => this.dial(machine, port);
    this.kept = new MachineAgent(dial, { keepAlive: true, maxFreeSockets: maxIdlePerPort, timeout: idleMs });
    this.fresh = new MachineAgent(dial, { keepAlive: false });
  }

  async dial(machine: string, port: number): Promise<Duplex> {
    const stream = await this.#connect(machine, port);
    stream.on("error", () => {});
    const open = this.#byMachine.get(machine) ?? new Set();
    this.#byMachine.set(machine, open.add(stream));
    stream.once("close", () => {
      open.delete(stream);
      if (open.size === 0 && this.#byMachine.get(machine) === open) this.#byMachine.delete(machine);
    });
    return stream;
  }

  /** Closes all connections of a machine that was released. No later request reaches it. */
  end(machine: string): void {
    for (const stream of this.#byMachine.get(machine) ?? []) stream.destroy();
  }

  endAll(): void {
    for (const machine of this.#byMachine.keys()) this.end(machine);
  }
}

/** Node's connection pool, with machines as hosts. */
class MachineAgent extends Agent {
  readonly #dial: (
    machine: string,
    port: number,
    done: (error: Error | null, stream: Duplex) => void,
  ) => void;

  constructor(dial: Upstreams["dial"], options: AgentOptions) {
    super(options);
    this.#dial = callbackify(async (machine: string, port: number) => {
      const stream = await dial(machine, port);
      // A tunnel may be half open, but an HTTP connection ends when the guest ends it.
      stream.allowHalfOpen = false;
      return stream;
    });
  }

  override createConnection(
    { host, port }: { host?: string | null; port?: number | string | null },
    done: (error: Error | null, stream: Duplex) => void = () => {},
  ): undefined {
    this.#dial(host ?? "", Number(port), done);
  }
}
