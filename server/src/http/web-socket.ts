/**
 * WebSockets. A handshake goes the way of every request: known, counted, parsed, and refused with an ordinary answer;
 * only then is it a socket. A browser cannot set `Authorization` here, so a token may also come as the subprotocol
 * `kontor.bearer.<token>` beside the one that is spoken: a header as well, never a part of an address.
 *
 * An open socket is slowed, not buffered: a peer who reads slowly holds up `send`, and one whose messages nobody takes
 * is not read. Every half minute the peer must have shown a sign of life.
 */
import { ServerResponse, type IncomingMessage } from "node:http";
import type { Socket as NetSocket } from "node:net";
import type { Duplex } from "node:stream";
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { WebSocket, WebSocketServer } from "ws";
import { credentialOf } from "./credential.ts";
import { type Route, subprotocol } from "./define-route.ts";
import { badHandshake } from "./errors.ts";

/** What a room holds of a socket. */
export interface Socket {
  /** Aborted when the peer has gone, or is to go. */
  readonly signal: AbortSignal;
  /** Text as strings, binary as buffers; ends with the socket. For one reader. */
  readonly messages: AsyncIterable<Buffer | string>;
  /** A buffer as it is, anything else as JSON. Resolves when it is with the kernel, or the peer has gone. */
  send(message: Buffer | object): Promise<void>;
  close(code: number, reason?: string): void;
}

const bearerPrefix = "kontor.bearer.";
/** A pasted text; larger files have a way of their own. */
const maxMessageBytes = 256 * 1024;
/** Messages that wait to be taken, before the peer is not read any more. */
const maxWaitingBytes = 64 * 1024;
const lookEveryMs = 30_000;
/** A peer that does not answer a close gets no more time than this. */
const closeWithinMs = 1_000;

/** RFC 6455 section 7.4: the server is going away; whoever comes back finds another. */
const serverEnds = 1001;
const rightsChanged = 1008;

const acceptor = new WebSocketServer({
  noServer: true,
  maxPayload: maxMessageBytes,
  perMessageDeflate: false,
  // The token's own is never said back.
  handleProtocols: (offered) => (offered.has(subprotocol) ? subprotocol : false),
});

const handshakes = new WeakMap<IncomingMessage, { socket: NetSocket; head: Buffer }>();
const open = new Set<OpenSocket>();

/** For Node: which requests become sockets. Any other `Upgrade` is answered as if it were not there. */
export function upgradeFilter(routes: readonly Route[]): (request: IncomingMessage) => boolean {
  const patterns = routes
    .filter(({ socket }) => socket !== undefined)
    .map(({ path }) => new RegExp(`^${path.replaceAll(/\{\w+\}/g, "[^/]+")}$`));
  return ({ headers, url = "" }) => {
    const path = url.split("?")[0]!;
    return headers.upgrade?.toLowerCase() === "websocket" && patterns.some((pattern) => pattern.test(path));
  };
}

/** Hands a handshake to the routes, as a request whose answer goes to its socket. */
export function takeHandshake(
  fastify: FastifyInstance,
  request: IncomingMessage,
  duplex: Duplex,
  head: Buffer,
): void {
  const socket = duplex as NetSocket;
  socket.on("error", () => socket.destroy());
  const response = new ServerResponse(request);
  response.assignSocket(socket);
  response.shouldKeepAlive = false;
  // Whoever answers without accepting has refused.
  response.once("finish", () => socket.destroySoon());
  liftToken(request);
  handshakes.set(request, { socket, head });
  fastify.routing(request, response);
}

/** From here on the token is where a token always is. */
function liftToken({ headers }: IncomingMessage): void {
  const offered = headers["sec-websocket-protocol"]?.split(",").map((name) => name.trim()) ?? [];
  const bearer = offered.find((name) => name.startsWith(bearerPrefix));
  if (bearer !== undefined) headers.authorization ??= `Bearer ${bearer.slice(bearerPrefix.length)}`;
}

export function isHandshake(request: FastifyRequest): boolean {
  return handshakes.has(request.raw);
}

/** What the library would refuse by itself, after the work was done. */
export function checkHandshake({ headers }: FastifyRequest): void {
  const key = headers["sec-websocket-key"];
  if (headers["sec-websocket-version"] !== "13" || !/^[+/0-9A-Za-z]{22}==$/.test(String(key)))
    throw badHandshake();
}

/** Closes the socket when the credential that opened it becomes invalid. */
export async function serveSocket(
  request: FastifyRequest,
  reply: FastifyReply,
  serve: (socket: Socket) => Promise<void>,
): Promise<void> {
  const handshake = handshakes.get(request.raw);
  if (!handshake) throw new Error("only a handshake becomes a socket");
  const { socket, head } = handshake;
  request.server.streams.claim(request, request.actor);
  reply.hijack();
  reply.raw.detachSocket(socket);
  acceptor.handleUpgrade(request.raw, socket, head, (accepted) => {
    const opened = new OpenSocket(accepted);
    const credential = credentialOf(request.headers);
    const end = (): void => opened.close(rightsChanged, "the credential is not valid any more");
    if (credential) {
      const unwatch = request.server.streams.add({ actor: request.actor, credential, isWrite: true, end });
      accepted.once("close", unwatch);
    }
    void serve(opened).catch(() => opened.close(1011));
  });
}

export function endAllSockets(): void {
  for (const socket of open) socket.close(serverEnds, "the server ends");
}

class OpenSocket implements Socket {
  readonly messages: AsyncIterable<Buffer | string>;
  readonly #ws: WebSocket;
  readonly #gone = new AbortController();
  readonly #waiting: (Buffer | string)[] = [];
  #waitingBytes = 0;
  #isAlive = true;
  #wake: () => void = () => {};

  constructor(ws: WebSocket) {
    this.#ws = ws;
    this.messages = this.#take();
    open.add(this);
    const looking = setInterval(() => this.#look(), lookEveryMs);
    ws.on("message", (data: Buffer, isBinary) => this.#keep(isBinary ? data : data.toString("utf8")));
    ws.on("pong", () => (this.#isAlive = true));
    // `close` follows.
    ws.on("error", () => {});
    ws.once("close", () => {
      clearInterval(looking);
      open.delete(this);
      this.#end();
    });
  }

  get signal(): AbortSignal {
    return this.#gone.signal;
  }

  async send(message: Buffer | object): Promise<void> {
    // Said at once: a sender in a loop would not let its `close` event come.
    if (this.#ws.readyState !== WebSocket.OPEN) return this.#end();
    const data = Buffer.isBuffer(message) ? message : JSON.stringify(message);
    await new Promise<unknown>((resolve) => this.#ws.send(data, resolve));
    // A peer that takes bytes lives, though its answer to a ping may be long in coming.
    this.#isAlive = true;
  }

  close(code: number, reason = ""): void {
    this.#ws.close(code, reason);
    this.#ws.resume();
    setTimeout(() => this.#ws.terminate(), closeWithinMs).unref();
    this.#waiting.length = 0;
    this.#end();
  }

  #end(): void {
    this.#gone.abort(new Error("the socket is closed"));
    this.#wake();
  }

  #look(): void {
    // One that we do not read cannot answer.
    if (!this.#isAlive && !this.#ws.isPaused) return this.#ws.terminate();
    this.#isAlive = false;
    this.#ws.ping();
  }

  #keep(message: Buffer | string): void {
    this.#isAlive = true;
    this.#waiting.push(message);
    this.#waitingBytes += message.length;
    if (this.#waitingBytes > maxWaitingBytes) this.#ws.pause();
    this.#wake();
  }

  async *#take(): AsyncGenerator<Buffer | string> {
    for (;;) {
      const message = this.#waiting.shift();
      if (message !== undefined) {
        this.#waitingBytes -= message.length;
        yield message;
        continue;
      }
      if (this.signal.aborted) return;
      if (this.#ws.isPaused) this.#ws.resume();
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}
