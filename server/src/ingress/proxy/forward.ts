/**
 * Forwards a request to a port of a machine and streams the response back, with backpressure in both directions. Node's
 * strict parser reads the request and the response, and both are written anew. A guest that sends invalid, endless or
 * no data affects only its own request.
 */
import http, { type ClientRequest, type IncomingMessage, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { hasBody } from "./headers.ts";
import { countHeads, countStream, type Traffic } from "./traffic.ts";
import type { Upstreams } from "../sites/upstreams.ts";

export interface ForwardOptions {
  machine: string;
  port: number;
  path: string;
  /** Headers for the guest, in which names and values alternate. */
  headers: string[];
  /** Builds the visitor's headers from the guest's response. Called once, as soon as the response begins. */
  toVisitor: (answer: IncomingMessage) => string[];
  /** Maximum size of the visitor's body. A longer body ends the exchange with `too_large`. */
  maxBodyBytes?: number;
  /** Counts the bytes of the exchange. */
  traffic?: Traffic;
  /**
   * Called when the awaited side changes. The guest is awaited once it has the whole request, or while it does not read
   * more of the request; otherwise the visitor is awaited.
   */
  onAwaitedSide?: (whose: AwaitedSide) => void;
  /** Ends the exchange with its reason, a `NoResponse`. */
  signal?: AbortSignal;
}

export type AwaitedSide = "guest" | "visitor";

/** Error before any response was sent, so the visitor can still get the reason. */
export class NoResponse extends Error {
  override readonly name = "NoAnswer";
  readonly why: "not_listening" | "gone" | "bad_response" | "timeout" | "too_large" | "too_slow";
  /** True for a reused connection, which the guest may have closed at the same moment. */
  readonly wasReused: boolean;

  constructor(why: NoResponse["why"], options: { cause?: unknown; wasReused?: boolean } = {}) {
    super(`no response: ${why}`, { cause: options.cause });
    this.why = why;
    this.wasReused = options.wasReused ?? false;
  }
}

const maxHeaderBytes = 64 * 1024;
/** Idle timeout of the guest's connection: long enough for long polls and silent streams, and ends abandoned ones. */
const idleMs = 10 * 60_000;
/**
 * Time after which a client that expects `100 Continue` gets it from this server, if the guest sends none (RFC 9110
 * §10.1.1).
 */
const continueMs = 1_000;
/** Maximum pause between two pieces of a visitor's body, until the response begins. */
const stalledMs = 60_000;
/** A reason phrase that Node's `writeHead` accepts. `writeHead` throws on control characters (RFC 9112, 4). */
const reasonPhrase = /^[\t\x20-\x7e\x80-\xff]*$/;
/** Maximum of 1xx responses to one request: a guest could send them endlessly. */
const maxInterim = 32;
const repeatable = new Set(["GET", "HEAD", "OPTIONS"]);

/** True if the request can be sent to the guest a second time: a safe method, and no body. */
export function mayRepeat(request: IncomingMessage): boolean {
  return repeatable.has(request.method ?? "") && !hasBody(request);
}

/** Resolves when the exchange is over. Throws `NoResponse` only before it has written anything or read the body. */
export async function forward(
  upstreams: Upstreams,
  request: IncomingMessage,
  response: ServerResponse,
  to: ForwardOptions,
): Promise<void> {
  if (!mayRepeat(request)) return exchange(upstreams.fresh, request, response, to);
  try {
    await exchange(upstreams.kept, request, response, to);
  } catch (error) {
    if (!(error instanceof NoResponse && error.wasReused) || response.headersSent) throw error;
    await exchange(upstreams.fresh, request, response, to);
  }
}

async function exchange(
  agent: http.Agent,
  request: IncomingMessage,
  response: ServerResponse,
  to: ForwardOptions,
): Promise<void> {
  const { machine, port, path, headers, toVisitor, signal } = to;
  // The visitor disconnected while a machine woke up.
  if (response.destroyed) return;
  const outgoing = http.request({
    agent,
    host: machine,
    port,
    method: request.method ?? "GET",
    path,
    headers,
    maxHeaderSize: maxHeaderBytes,
    insecureHTTPParser: false,
  });
  const abort = () => outgoing.destroy();
  const end = () => outgoing.destroy(signal?.reason as NoResponse);
  response.once("close", abort);
  signal?.addEventListener("abort", end, { once: true });
  try {
    sendBody(request, response, outgoing, to);
    const answer = await respondTo(outgoing);
    countHeads(to.traffic, headers, answer);
    countStream(to.traffic, "txBytes", answer);
    response.writeHead(answer.statusCode ?? 502, reasonOf(answer), toVisitor(answer));
    await passOn(answer, response);
  } catch (error) {
    outgoing.destroy();
    asNoResponse(error, outgoing);
  } finally {
    response.off("close", abort);
    signal?.removeEventListener("abort", end);
  }
}

function sendBody(
  request: IncomingMessage,
  response: ServerResponse,
  outgoing: ClientRequest,
  { maxBodyBytes = Number.POSITIVE_INFINITY, onAwaitedSide: onTurn, traffic }: ForwardOptions,
): void {
  outgoing.once("finish", () => onTurn?.("guest"));
  if (!hasBody(request)) {
    outgoing.end();
    return;
  }
  let isSending = false;
  const send = () => {
    if (isSending || outgoing.destroyed) return;
    isSending = true;
    let bytes = 0;
    const stalled = setTimeout(() => {
      // The guest applies backpressure, so the visitor is not slow.
      if (request.isPaused()) stalled.refresh();
      else outgoing.destroy(new NoResponse("too_slow"));
    }, stalledMs);
    const isMoving = () => clearTimeout(stalled);
    countStream(traffic, "rxBytes", request);
    outgoing.once("response", isMoving);
    outgoing.once("close", isMoving);
    request.on("data", (piece: Buffer) => {
      bytes += piece.length;
      if (bytes > maxBodyBytes) return void outgoing.destroy(new NoResponse("too_large"));
      stalled.refresh();
      if (outgoing.write(piece)) return;
      request.pause();
      onTurn?.("guest");
    });
    outgoing.on("drain", () => {
      request.resume();
      if (!outgoing.writableEnded) onTurn?.("visitor");
    });
    request.once("end", () => {
      isMoving();
      outgoing.addTrailers(pairsOf(request.rawTrailers));
      outgoing.end();
    });
    request.once("error", () => outgoing.destroy());
  };
  // The body is read only after the connection exists. Until then the request can still go to another machine.
  outgoing.once("socket", () => {
    if (request.headers.expect === undefined) return send();
    outgoing.flushHeaders();
    const goOn = () => {
      clearTimeout(late);
      if (isSending || response.headersSent || response.destroyed) return;
      response.writeContinue();
      send();
    };
    const late = setTimeout(goOn, continueMs);
    outgoing.once("continue", goOn);
    outgoing.once("response", () => clearTimeout(late));
    outgoing.once("close", () => clearTimeout(late));
  });
}

function respondTo(outgoing: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    let interim = 0;
    outgoing.setTimeout(idleMs, () => outgoing.destroy(new NoResponse("timeout")));
    outgoing.on("error", reject);
    outgoing.on("close", () => reject(new Error("closed without a response")));
    outgoing.on("information", () => {
      interim += 1;
      if (interim > maxInterim) outgoing.destroy(new Error("too many interim responses"));
    });
    outgoing.on("response", resolve);
    // The guest upgrades, although the visitor did not request an upgrade.
    outgoing.on("upgrade", (_answer: IncomingMessage, socket: Socket) => {
      socket.destroy();
      reject(new Error("switched protocols without a request"));
    });
  });
}

/**
 * Returns the reason phrase of a response. Throws when an error page must replace the response. The check is early: a
 * failed `writeHead` would keep the phrase.
 */
export function reasonOf({ statusMessage = "" }: IncomingMessage): string {
  if (!reasonPhrase.test(statusMessage)) throw new NoResponse("bad_response");
  return statusMessage;
}

/**
 * A truncated response must not look complete: if the guest's response breaks off, the visitor's connection is
 * destroyed.
 */
function passOn(answer: IncomingMessage, response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    // Headers are sent at once, because a stream of events may send nothing for a while. Data that arrives in the same
    // tick leaves in the same system call; this covers most responses.
    const head = setImmediate(() => response.flushHeaders());
    answer.on("data", (piece: Buffer) => {
      clearImmediate(head);
      if (!response.write(piece)) answer.pause();
    });
    response.on("drain", () => answer.resume());
    answer.once("end", () => {
      clearImmediate(head);
      if (!answer.complete) return;
      response.addTrailers(pairsOf(answer.rawTrailers));
      response.end();
    });
    answer.once("error", () => response.destroy());
    answer.once("close", () => {
      clearImmediate(head);
      if (!answer.complete) response.destroy();
      // The response may have closed before this listener was added.
      if (response.destroyed) resolve();
    });
    response.once("finish", resolve);
    response.once("close", resolve);
  });
}

/** Converts an error before the response to a `NoResponse`. Errors of the runtime have a kind. */
export function asNoResponse(error: unknown, outgoing?: ClientRequest): never {
  if (error instanceof NoResponse) throw error;
  const { kind, code } = error as { kind?: string; code?: string };
  // The site's own response reports the error.
  if (code === "account_suspended") throw error;
  if (kind === "connection_refused") throw new NoResponse("not_listening", { cause: error });
  if (kind !== undefined) throw new NoResponse("gone", { cause: error });
  throw new NoResponse("bad_response", { cause: error, wasReused: outgoing?.reusedSocket ?? false });
}

function pairsOf(raw: readonly string[]): [string, string][] {
  return raw.flatMap((name, at): [string, string][] => (at % 2 === 0 ? [[name, raw[at + 1] ?? ""]] : []));
}
