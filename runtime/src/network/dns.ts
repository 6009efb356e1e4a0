/**
 * The DNS forwarder: what open machines know as 10.0.0.1 port 53. It hands questions as they are to the host's own
 * resolvers and answers back, over UDP and TCP, and understands nothing of them but the first twelve bytes. Who may
 * ask at all is decided by nft before a packet gets here; what an answer names is judged when the machine connects to
 * it, so an answer that points at a private address (DNS rebinding) opens nothing.
 *
 * Everything a machine can make it hold is bounded: questions at once, connections, their age.
 */
import dgram from "node:dgram";
import net from "node:net";

export interface DnsForwarderOptions {
  address: string;
  /** Addresses of resolvers, in order; asked anew for each question. */
  servers: () => readonly string[];
  serverPort?: number;
  /** How long one server is waited for before the next is asked. */
  serverTimeoutMs?: number;
}

/** A stub resolver asks for A and AAAA with one retry or two: 64 is a busy machine, 1024 a busy host. */
const MAX_QUESTIONS = 1024;
const MAX_QUESTIONS_PER_MACHINE = 64;
const MAX_CONNECTIONS = 256;
const MAX_CONNECTIONS_PER_MACHINE = 8;
/** glibc waits 5 s for a server; with two servers we answer before it gives up. */
const SERVER_TIMEOUT_MS = 2_000;
const CONNECTION_IDLE_MS = 10_000;
const CONNECTION_AGE_MS = 60_000;

const HEADER_BYTES = 12;
const RESPONSE_BIT = 0x80;
const SERVER_FAILURE = 2;

export class DnsForwarder {
  readonly #options: DnsForwarderOptions;
  #udp: dgram.Socket | undefined;
  #tcp: net.Server | undefined;
  readonly #questions = new Load(MAX_QUESTIONS, MAX_QUESTIONS_PER_MACHINE);
  readonly #connections = new Load(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_MACHINE);
  readonly #open = new Set<{ destroy(): void }>();

  constructor(options: DnsForwarderOptions) {
    this.#options = options;
  }

  /** Listens on a free port, the same for UDP and TCP, and answers it. */
  async open(): Promise<number> {
    for (let attempt = 1; ; attempt++) {
      const tcp = net.createServer({ allowHalfOpen: true }, (client) => this.#relay(client));
      const port = await listenTcp(tcp, this.#options.address);
      try {
        this.#udp = await bindUdp(this.#options.address, port);
      } catch (error) {
        tcp.close();
        // The kernel chose a port that is free for TCP; somebody may hold it for UDP.
        if (attempt === 8) throw error;
        continue;
      }
      this.#tcp = tcp;
      this.#udp.on("message", (question, from) => void this.#answer(question, from));
      this.#udp.on("error", () => {});
      return port;
    }
  }

  async close(): Promise<void> {
    for (const socket of this.#open) socket.destroy();
    const tcp = this.#tcp;
    const udp = this.#udp;
    if (tcp !== undefined) await new Promise((resolve) => tcp.close(resolve));
    if (udp !== undefined) await new Promise<void>((resolve) => udp.close(() => resolve()));
    this.#tcp = undefined;
    this.#udp = undefined;
  }

  async #answer(question: Buffer, from: dgram.RemoteInfo): Promise<void> {
    if (question.length < HEADER_BYTES || ((question[2] ?? 0) & RESPONSE_BIT) !== 0) return;
    const release = this.#questions.take(from.address);
    const answer = release === undefined ? undefined : await this.#ask(question);
    release?.();
    // The socket may have been closed while the question was out.
    this.#udp?.send(answer ?? failure(question), from.port, from.address);
  }

  async #ask(question: Buffer): Promise<Buffer | undefined> {
    for (const server of this.#options.servers()) {
      const answer = await this.#askServer(question, server);
      if (answer !== undefined) return answer;
    }
    return undefined;
  }

  /** A socket of its own for each question: its random port is what makes a forged answer hard (RFC 5452). */
  #askServer(question: Buffer, server: string): Promise<Buffer | undefined> {
    const { serverPort = 53, serverTimeoutMs = SERVER_TIMEOUT_MS } = this.#options;
    return new Promise((resolve) => {
      const socket = dgram.createSocket(net.isIPv6(server) ? "udp6" : "udp4");
      const finish = (answer: Buffer | undefined) => {
        if (!this.#open.delete(handle)) return;
        clearTimeout(deadline);
        socket.close();
        resolve(answer);
      };
      const handle = { destroy: () => finish(undefined) };
      const deadline = setTimeout(finish, serverTimeoutMs, undefined);
      this.#open.add(handle);
      socket.on("error", () => finish(undefined));
      // Connected: the kernel takes answers from this server only, and reports a refusal at once.
      socket.once("connect", () => socket.send(question));
      socket.connect(serverPort, server);
      socket.on("message", (answer) => {
        if (answer.length >= HEADER_BYTES && answer.readUInt16BE(0) === question.readUInt16BE(0))
          finish(answer);
      });
    });
  }

  /** A TCP connection is passed on as it is: length-prefixed questions one way, answers the other. */
  #relay(client: net.Socket): void {
    const release = this.#connections.take(client.remoteAddress ?? "");
    const [server] = this.#options.servers();
    if (release === undefined || server === undefined) {
      release?.();
      client.resetAndDestroy();
      return;
    }
    const upstream = net.connect({ host: server, port: this.#options.serverPort ?? 53, allowHalfOpen: true });
    const handle = {
      destroy: () => {
        if (!this.#open.delete(handle)) return;
        clearTimeout(age);
        release();
        client.destroy();
        upstream.destroy();
      },
    };
    const age = setTimeout(handle.destroy, CONNECTION_AGE_MS);
    this.#open.add(handle);
    for (const socket of [client, upstream]) {
      socket.setTimeout(CONNECTION_IDLE_MS, handle.destroy);
      socket.on("error", handle.destroy);
    }
    client.on("close", handle.destroy);
    upstream.on("close", () => client.end());
    client.pipe(upstream);
    upstream.pipe(client);
  }
}

/** Counts what is under way, in all and for each machine. */
class Load {
  readonly #max: number;
  readonly #maxPerMachine: number;
  readonly #byMachine = new Map<string, number>();
  #total = 0;

  constructor(max: number, maxPerMachine: number) {
    this.#max = max;
    this.#maxPerMachine = maxPerMachine;
  }

  /** Answers how to give the place back; undefined where there is none. */
  take(machine: string): (() => void) | undefined {
    const own = this.#byMachine.get(machine) ?? 0;
    if (this.#total >= this.#max || own >= this.#maxPerMachine) return undefined;
    this.#total += 1;
    this.#byMachine.set(machine, own + 1);
    return () => {
      this.#total -= 1;
      const left = (this.#byMachine.get(machine) ?? 1) - 1;
      if (left === 0) this.#byMachine.delete(machine);
      else this.#byMachine.set(machine, left);
    };
  }
}

/** The question sent back with "server failure" in it: a resolver inside gives up at once and does not wait. */
export function failure(question: Buffer): Buffer {
  const answer = Buffer.from(question);
  answer[2] = (answer[2] ?? 0) | RESPONSE_BIT;
  answer[3] = ((answer[3] ?? 0) & 0xf0) | SERVER_FAILURE;
  return answer;
}

function listenTcp(server: net.Server, address: string): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(0, address, () => {
      server.removeListener("error", reject);
      server.on("error", () => {});
      resolve((server.address() as net.AddressInfo).port);
    });
  });
}

function bindUdp(address: string, port: number): Promise<dgram.Socket> {
  return new Promise((resolve, reject) => {
    const socket = dgram.createSocket("udp4");
    socket.once("error", reject);
    socket.bind(port, address, () => {
      socket.removeListener("error", reject);
      resolve(socket);
    });
  });
}
