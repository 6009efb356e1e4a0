/**
 * One request to one port of one machine, and its answer: both are streamed as they come, each held back by whoever
 * reads it slower. The request was read by Node's strict parser and is written anew; so is the answer. A guest that
 * answers nonsense, without end or not at all costs this request and nothing else.
 */
import http, { type ClientRequest, type IncomingMessage, type ServerResponse } from "node:http";
import type { Socket } from "node:net";
import { hasBody } from "./headers.ts";
import { countHeads, countStream, type Traffic } from "./traffic.ts";
import type { Upstreams } from "./upstreams.ts";

export interface Forwarded {
  machine: string;
  port: number;
  path: string;
  /** Names and values in turn. */
  headers: string[];
  /** The answer's headers, of the guest's. Asked once, as soon as there is an answer. */
  toVisitor: (answer: IncomingMessage) => string[];
  /** A body that turns out to be larger ends with `too_large`. */
  maxBodyBytes?: number;
  /** Counter for the bytes of the exchange. */
  traffic?: Traffic;
  /** Who is waited for from now on: the guest once it has all of the request, or while it does not take more of it. */
  onTurn?: (whose: Turn) => void;
  /** Ends the exchange with its reason, a `NoAnswer`. */
  signal?: AbortSignal;
}

export type Turn = "guest" | "visitor";

/** Before anything was answered: the visitor can be told why. */
export class NoAnswer extends Error {
  override readonly name = "NoAnswer";
  readonly why: "not_listening" | "gone" | "bad_response" | "timeout" | "too_large" | "too_slow";
  /** The guest may have hung up on an idle connection just as it was used again. */
  readonly wasReused: boolean;

  constructor(why: NoAnswer["why"], options: { cause?: unknown; wasReused?: boolean } = {}) {
    super(`no answer: ${why}`, { cause: options.cause });
    this.why = why;
    this.wasReused = options.wasReused ?? false;
  }
}

const maxHeaderBytes = 64 * 1024;
/** Long polls and silent streams live on; what both sides forgot goes. */
export const idleMs = 10 * 60_000;
/** A client that waits for leave to send its body is given it, where the guest gives none (RFC 9110 §10.1.1). */
const continueMs = 1_000;
/** A visitor who says that a body comes says something of it this often, until he is answered. */
const stalledMs = 60_000;
/** A reason phrase that Node's `writeHead` accepts; it throws on control characters (RFC 9112, 4). */
const reasonPhrase = /^[\t\x20-\x7e\x80-\xff]*$/;
/** Of 1xx answers a guest may send one without end. */
const maxInterim = 32;
const repeatable = new Set(["GET", "HEAD", "OPTIONS"]);

/** A request that asks and changes nothing may arrive twice. */
export function mayRepeat(request: IncomingMessage): boolean {
  return repeatable.has(request.method ?? "") && !hasBody(request);
}

/** Settles when the exchange is over. Throws `NoAnswer`, and then nothing has been written and no body been read. */
export async function forward(
  upstreams: Upstreams,
  request: IncomingMessage,
  response: ServerResponse,
  to: Forwarded,
): Promise<void> {
  if (!mayRepeat(request)) return exchange(upstreams.fresh, request, response, to);
  try {
    await exchange(upstreams.kept, request, response, to);
  } catch (error) {
    if (!(error instanceof NoAnswer && error.wasReused) || response.headersSent) throw error;
    await exchange(upstreams.fresh, request, response, to);
  }
}

async function exchange(
  agent: http.Agent,
  request: IncomingMessage,
  response: ServerResponse,
  to: Forwarded,
): Promise<void> {
  const { machine, port, path, headers, toVisitor, signal } = to;
  // The visitor left while a machine was woken for him.
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
  const end = () => outgoing.destroy(signal?.reason as NoAnswer);
  response.once("close", abort);
  signal?.addEventListener("abort", end, { once: true });
  try {
    sendBody(request, response, outgoing, to);
    const answer = await answerTo(outgoing);
    countHeads(to.traffic, headers, answer);
    countStream(to.traffic, "txBytes", answer);
    response.writeHead(answer.statusCode ?? 502, reasonOf(answer), toVisitor(answer));
    await passOn(answer, response);
  } catch (error) {
    outgoing.destroy();
    asNoAnswer(error, outgoing);
  } finally {
    response.off("close", abort);
    signal?.removeEventListener("abort", end);
  }
}

function sendBody(
  request: IncomingMessage,
  response: ServerResponse,
  outgoing: ClientRequest,
  { maxBodyBytes = Number.POSITIVE_INFINITY, onTurn, traffic }: Forwarded,
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
      // Held back by the guest, he is not slow.
      if (request.isPaused()) stalled.refresh();
      else outgoing.destroy(new NoAnswer("too_slow"));
    }, stalledMs);
    const isMoving = () => clearTimeout(stalled);
    countStream(traffic, "rxBytes", request);
    outgoing.once("response", isMoving);
    outgoing.once("close", isMoving);
    request.on("data", (piece: Buffer) => {
      bytes += piece.length;
      if (bytes > maxBodyBytes) return void outgoing.destroy(new NoAnswer("too_large"));
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
  // Not before there is a connection: until then the body can still go elsewhere.
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

function answerTo(outgoing: ClientRequest): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    let interim = 0;
    outgoing.setTimeout(idleMs, () => outgoing.destroy(new NoAnswer("timeout")));
    outgoing.on("error", reject);
    outgoing.on("close", () => reject(new Error("closed without an answer")));
    outgoing.on("information", () => {
      interim += 1;
      if (interim > maxInterim) outgoing.destroy(new Error("interim answers without end"));
    });
    outgoing.on("response", resolve);
    // Nobody asked to upgrade.
    outgoing.on("upgrade", (_answer: IncomingMessage, socket: Socket) => {
      socket.destroy();
      reject(new Error("switched protocols unasked"));
    });
  });
}

/**
 * Throws when an error page must replace the response. The check is early: a failed `writeHead` would keep the phrase.
 */
export function reasonOf({ statusMessage = "" }: IncomingMessage): string {
  if (!reasonPhrase.test(statusMessage)) throw new NoAnswer("bad_response");
  return statusMessage;
}

/** A half answer must not look like a whole one: where it breaks off, the visitor's connection does. */
function passOn(answer: IncomingMessage, response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    // The head is the news; a stream of events may have nothing to say for a while. What came with it leaves with it,
    // by one call to the system: most answers are here as a whole by now.
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
      // Its own end was told before anybody listened here.
      if (response.destroyed) resolve();
    });
    response.once("finish", resolve);
    response.once("close", resolve);
  });
}

/** Of what went wrong before there was an answer; an error of the runtime has a kind. */
export function asNoAnswer(error: unknown, outgoing?: ClientRequest): never {
  if (error instanceof NoAnswer) throw error;
  const { kind, code } = error as { kind?: string; code?: string };
  // The site's own response reports the error.
  if (code === "account_suspended") throw error;
  if (kind === "connection_refused") throw new NoAnswer("not_listening", { cause: error });
  if (kind !== undefined) throw new NoAnswer("gone", { cause: error });
  throw new NoAnswer("bad_response", { cause: error, wasReused: outgoing?.reusedSocket ?? false });
}

function pairsOf(raw: readonly string[]): [string, string][] {
  return raw.flatMap((name, at): [string, string][] => (at % 2 === 0 ? [[name, raw[at + 1] ?? ""]] : []));
}
