/**
 * Connections to ports inside machines, by way of each machine's own loopback: servers that listen on 127.0.0.1 or ::1
 * alone are reached like any other. A connection belongs to one machine for good, and ends with it.
 */
import { Agent, type AgentOptions } from "node:http";
import type { Duplex } from "node:stream";
import { callbackify } from "node:util";

/** What is asked of whoever knows machines. Fails with `kind: "connection_refused"` where nothing listens. */
export type Connect = (machine: string, port: number) => Promise<Duplex>;

/** Common servers drop a connection that idled for 5 s (Node, uvicorn): ours is gone before. */
const idleMs = 4_000;
const maxIdlePerPort = 16;

export class Upstreams {
  /** Connections are kept and used again: for requests that may be sent once more if one turns out to be dead. */
  readonly kept: Agent;
  /** One connection for each request: for those that must not arrive twice. */
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

  /** The machine is somebody's no more: nothing reaches it from here on. */
  end(machine: string): void {
    for (const stream of this.#byMachine.get(machine) ?? []) stream.destroy();
  }

  endAll(): void {
    for (const machine of this.#byMachine.keys()) this.end(machine);
  }
}

/** Node's own pool of connections, with machines for hosts. */
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
      // A tunnel may be half open; a connection that carries requests is over when the guest says so.
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
