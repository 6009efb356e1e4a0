/**
 * WebSockets. A handshake passes the steps of every request: it is authenticated, counted and parsed, and may get an
 * ordinary error response. The socket opens after that. A browser cannot set `Authorization` here, so a token may also
 * come as the subprotocol `kontor.bearer.<token>` beside `kontor`. The token is then in a header, never in an address.
 *
 * An open socket applies backpressure instead of buffering. A peer that reads slowly delays `send`. A peer whose
 * messages the handler does not take is not read. The peer must show a sign of life every 30 seconds.
 */
import { ServerResponse, type IncomingMessage } from "node:http";
import type { Socket as NetSocket } from "node:net";
import type { Duplex } from "node:stream";
import type { FastifyInstance, FastifyReply, FastifyRequest } from "fastify";
import { WebSocket, WebSocketServer } from "ws";
import { credentialOf } from "../credential.ts";
import { type Route, subprotocol } from "../define-route.ts";
import { badHandshake } from "../errors.ts";
import type { Socket } from "./socket.ts";

const bearerPrefix = "kontor.bearer.";
/** Maximum size of a message: enough for a text that a user pastes. Larger files have their own operation. */
const maxMessageBytes = 256 * 1024;
/** Size of the unread messages above which the peer is no longer read. */
const maxWaitingBytes = 64 * 1024;
const lookEveryMs = 30_000;
/** Deadline for the peer's response to a close. */
const closeWithinMs = 1_000;

/** Close code for "the server is going away" (RFC 6455, 7.4). A client that reconnects finds another server. */
const serverEnds = 1001;
const rightsChanged = 1008;

const acceptor = new WebSocketServer({
  noServer: true,
  maxPayload: maxMessageBytes,
  perMessageDeflate: false,
  // The subprotocol with the token is never sent back.
  handleProtocols: (offered) => (offered.has(subprotocol) ? subprotocol : false),
});

const handshakes = new WeakMap<IncomingMessage, { socket: NetSocket; head: Buffer }>();
const open = new Set<OpenSocket>();

/**
 * Returns a function by which Node decides which requests become WebSockets. Other requests with `Upgrade` are served
 * as if the header were missing.
 */
export function upgradeFilter(routes: readonly Route[]): (request: IncomingMessage) => boolean {
  const patterns = routes
    .filter(({ socket }) => socket !== undefined)
    .map(({ path }) => new RegExp(`^${path.replaceAll(/\{\w+\}/g, "[^/]+")}$`));
  return ({ headers, url = "" }) => {
    const path = url.split("?")[0]!;
    return headers.upgrade?.toLowerCase() === "websocket" && patterns.some((pattern) => pattern.test(path));
  };
}

/** Passes a handshake to the routes, as a request whose response goes to its socket. */
export function routeHandshake(
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
  // A finished response means that the handshake was refused.
  response.once("finish", () => socket.destroySoon());
  moveTokenToHeader(request);
  handshakes.set(request, { socket, head });
  fastify.routing(request, response);
}

/** Moves the token to the `Authorization` header. */
function moveTokenToHeader({ headers }: IncomingMessage): void {
  const offered = headers["sec-websocket-protocol"]?.split(",").map((name) => name.trim()) ?? [];
  const bearer = offered.find((name) => name.startsWith(bearerPrefix));
  if (bearer !== undefined) headers.authorization ??= `Bearer ${bearer.slice(bearerPrefix.length)}`;
}

export function isHandshake(request: FastifyRequest): boolean {
  return handshakes.has(request.raw);
}

/** Checks the handshake before the work starts. The library would refuse it only afterwards. */
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
  if (!handshake) throw new Error("only a WebSocket handshake opens a socket");
  const { socket, head } = handshake;
  request.server.streams.claim(request, request.actor);
  reply.hijack();
  reply.raw.detachSocket(socket);
  acceptor.handleUpgrade(request.raw, socket, head, (accepted) => {
    const opened = new OpenSocket(accepted);
    const credential = credentialOf(request.headers);
    const end = (): void => opened.close(rightsChanged, "the credential is no longer valid");
    if (credential) {
      const unwatch = request.server.streams.add({ actor: request.actor, credential, isWrite: true, end });
      accepted.once("close", unwatch);
    }
    void serve(opened).catch(() => opened.close(1011));
  });
}

export function endAllSockets(): void {
  for (const socket of open) socket.close(serverEnds, "the server shuts down");
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
    const looking = setInterval(() => this.#checkAlive(), lookEveryMs);
    ws.on("message", (data: Buffer, isBinary) => this.#keep(isBinary ? data : data.toString("utf8")));
    ws.on("pong", () => (this.#isAlive = true));
    // Every `error` event is followed by a `close` event, which ends the socket.
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
    // Ends the socket at once, because a sender in a loop would not let the `close` event arrive.
    if (this.#ws.readyState !== WebSocket.OPEN) return this.#end();
    const data = Buffer.isBuffer(message) ? message : JSON.stringify(message);
    await new Promise<unknown>((resolve) => this.#ws.send(data, resolve));
    // A peer that accepts bytes is alive, even if its pong is late.
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

  #checkAlive(): void {
    // A paused socket does not read its peer's pong.
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
