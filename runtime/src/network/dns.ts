/**
 * The DNS forwarder, at 10.0.0.1 port 53 for open machines. The forwarder sends questions unchanged to the host's
 * resolvers and returns their answers, over UDP and TCP. The forwarder reads only the first twelve bytes of an answer.
 * nft decides which machines may send questions, before a packet arrives here. The addresses in an answer are checked
 * when the machine connects to them, so an answer with a private address (DNS rebinding) opens nothing.
 *
 * Names below `.internal` belong to the machines. The forwarder answers them itself, each for the machines of its
 * group, and never forwards them.
 *
 * The forwarder bounds the concurrent questions of a machine, its connections, and their age.
 */
import dgram from "node:dgram";
import net from "node:net";
import type { Duplex } from "node:stream";
import { QuestionStream } from "./question-stream.ts";
import {
  answerInternal,
  errorAnswer,
  FORMAT_ERROR,
  HEADER_BYTES,
  isResponse,
  parseQuestion,
  REFUSED,
  SERVER_FAILURE,
  type Question,
} from "./questions.ts";

export interface DnsForwarderOptions {
  address: string;
  /** Returns the addresses of resolvers, in order. Called again for each question. */
  servers: () => readonly string[];
  serverPort?: number;
  /** Timeout for one server before the next is tried. */
  serverTimeoutMs?: number;
  /**
   * Returns the address of a name below `.internal`, for the machine at `client`. Without this function, no such name
   * exists.
   */
  internal?: (client: string, name: string) => string | undefined;
  /** Returns whether the machine may resolve other names. Without this function, every machine may. */
  mayResolveOutside?: (client: string) => boolean;
}

/**
 * Limit of concurrent questions. A stub resolver sends A and AAAA with one or two retries: 64 is a busy machine, 1024 a
 * busy host.
 */
const MAX_QUESTIONS = 1024;
const MAX_QUESTIONS_PER_MACHINE = 64;
const MAX_CONNECTIONS = 256;
const MAX_CONNECTIONS_PER_MACHINE = 8;
/** Timeout of one resolver. glibc waits 5 s for a server; with two resolvers, the answer arrives before that. */
const SERVER_TIMEOUT_MS = 2_000;
const CONNECTION_IDLE_MS = 10_000;
const CONNECTION_AGE_MS = 60_000;

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

  /** Listens on a free port, the same for UDP and TCP, and returns it. */
  async open(): Promise<number> {
    for (let attempt = 1; ; attempt++) {
      const tcp = net.createServer({ allowHalfOpen: true }, (client) => this.#accept(client));
      const port = await listenTcp(tcp, this.#options.address);
      try {
        this.#udp = await bindUdp(this.#options.address, port);
      } catch (error) {
        tcp.close();
        // The kernel chose a port that is free for TCP; another process may use it for UDP.
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
    const tcp = this.#tcp;
    const udp = this.#udp;
    this.#tcp = undefined;
    // Questions in flight get no reply, and the client repeats them to the next server. An error would be final.
    this.#udp = undefined;
    for (const socket of this.#open) socket.destroy();
    if (tcp !== undefined) await new Promise((resolve) => tcp.close(resolve));
    if (udp !== undefined) await new Promise<void>((resolve) => udp.close(() => resolve()));
  }

  async #answer(question: Buffer, from: dgram.RemoteInfo): Promise<void> {
    if (question.length < HEADER_BYTES || isResponse(question)) return;
    const own = this.#answerHere(question, parseQuestion(question), from.address);
    const release = own === undefined ? this.#questions.take(from.address) : undefined;
    const answer = release === undefined ? own : await this.#query(question);
    release?.();
    // The socket may have been closed before the answer arrived.
    this.#udp?.send(answer ?? failure(question), from.port, from.address);
  }

  /** Returns the answer to a question that is never forwarded. Undefined for all other questions. */
  #answerHere(message: Buffer, question: Question | undefined, client: string): Buffer | undefined {
    const { internal, mayResolveOutside } = this.#options;
    if (question === undefined) return errorAnswer(message, FORMAT_ERROR);
    if (question.isInternal) return answerInternal(message, question, internal?.(client, question.name));
    return (mayResolveOutside?.(client) ?? true) ? undefined : errorAnswer(message, REFUSED);
  }

  async #query(question: Buffer): Promise<Buffer | undefined> {
    for (const server of this.#options.servers()) {
      const answer = await this.#queryServer(question, server);
      if (answer !== undefined) return answer;
    }
    return undefined;
  }

  /**
   * Queries a server from a separate socket for each question: its random port makes a forged answer hard (RFC 5452).
   */
  #queryServer(question: Buffer, server: string): Promise<Buffer | undefined> {
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
      // On a connected socket, the kernel accepts answers from this server only, and reports a refusal at once.
      socket.once("connect", () => socket.send(question));
      socket.connect(serverPort, server);
      socket.on("message", (answer) => {
        if (answer.length >= HEADER_BYTES && answer.readUInt16BE(0) === question.readUInt16BE(0))
          finish(answer);
      });
    });
  }

  /**
   * Serves a TCP connection: length-prefixed questions in one direction, answers in the other. The first question
   * determines whether all questions of the connection are answered here or forwarded. A question of the other kind
   * ends the connection, and the client opens another one.
   */
  #accept(client: net.Socket): void {
    const address = client.remoteAddress ?? "";
    const release = this.#connections.take(address);
    if (release === undefined) return void client.resetAndDestroy();
    const questions = new QuestionStream((message) =>
      this.#answerHere(message, parseQuestion(message), address),
    );
    const handle = this.#hold([client, questions], release);
    questions.once("kind", (kind: "own" | "passed") => {
      if (kind === "own") questions.pipe(client);
      else this.#relay(client, questions, handle);
    });
    client.pipe(questions);
  }

  #relay(client: net.Socket, questions: QuestionStream, handle: HeldConnection): void {
    const [server] = this.#options.servers();
    if (server === undefined) return handle.destroy();
    const upstream = net.connect({ host: server, port: this.#options.serverPort ?? 53, allowHalfOpen: true });
    handle.add(upstream);
    upstream.on("close", () => client.end());
    questions.pipe(upstream);
    upstream.pipe(client);
  }

  /**
   * Ends the sockets together: at their maximum age, when idle, at an error of any socket, and when `client`, the
   * machine's own socket, closes.
   */
  #hold([client, ...others]: [net.Socket, ...Duplex[]], release: () => void): HeldConnection {
    const members: Duplex[] = [];
    const handle: HeldConnection = {
      destroy: () => {
        if (!this.#open.delete(handle)) return;
        clearTimeout(age);
        release();
        for (const member of members) member.destroy();
      },
      add: (member) => {
        members.push(member);
        if (member instanceof net.Socket) member.setTimeout(CONNECTION_IDLE_MS, handle.destroy);
        member.on("error", handle.destroy);
      },
    };
    const age = setTimeout(handle.destroy, CONNECTION_AGE_MS);
    this.#open.add(handle);
    for (const member of [client, ...others]) handle.add(member);
    client.on("close", handle.destroy);
    return handle;
  }
}

/** Sockets of one connection, which end together. */
interface HeldConnection {
  destroy: () => void;
  add: (member: Duplex) => void;
}

/** Counts operations in flight, in all and for each machine. */
class Load {
  readonly #max: number;
  readonly #maxPerMachine: number;
  readonly #byMachine = new Map<string, number>();
  #total = 0;

  constructor(max: number, maxPerMachine: number) {
    this.#max = max;
    this.#maxPerMachine = maxPerMachine;
  }

  /** Acquires a slot for an operation. Returns a function that releases the slot, or undefined if no slot is free. */
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

/** Returns the reply "server failure": a resolver in the machine fails at once instead of waiting. */
export function failure(question: Buffer): Buffer {
  return errorAnswer(question, SERVER_FAILURE);
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
