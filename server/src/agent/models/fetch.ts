/**
 * How a model is spoken to: like `fetch`, over connections of ours. An address belongs to a caller, so what is
 * connected to is what was checked; redirects are not followed, because a key went with the request; and connections
 * are kept, because a handshake is a good part of what a step costs beside the model itself.
 */
import {
  Agent as HttpAgent,
  type ClientRequest,
  type IncomingMessage,
  request as requestHttp,
} from "node:http";
import { Agent as HttpsAgent, request as requestHttps } from "node:https";
import { pipeline, type Readable, Transform } from "node:stream";
import type { OpenedHosts } from "#lib/network/addresses.ts";
import { checkedLookup, checkLiteral } from "#lib/network/checked-lookup.ts";

export type Fetch = typeof globalThis.fetch;

/** An answer that is not read on: another try would bring the same. */
export class AnswerUnfit extends Error {
  override readonly name = "AnswerUnfit";
}

/** Between two pieces of an answer, and until the first: models that think before they speak take minutes. */
const silentMs = 300_000;
/** Of one answer as it comes over the wire: far more than any model says, and nothing that fills the memory. */
const answerMaxBytes = 64 * 1024 ** 2;
/** A kept connection; below what most servers allow. */
const keptMs = 4_000;

/** The same fetch; its look-ups of names count for `owner`, a workspace. */
export function ownedFetch(fetch: Fetch, owner: string): Fetch {
  return (input, init) => fetch(input, { ...init, owner } as RequestInit);
}

/** One for a server; its connections go to hosts that `opened` lets through alone. */
export function modelFetch(opened: OpenedHosts): Fetch {
  const options = { keepAlive: true, timeout: keptMs, maxSockets: 256 };
  const agents = { "http:": new HttpAgent(options), "https:": new HttpsAgent(options) };
  return (input, init = {}) =>
    new Promise((resolve, reject) => {
      const url = new URL(input instanceof Request ? input.url : input);
      const {
        signal,
        body,
        owner = "",
        silenceMs = silentMs,
      } = init as RequestInit & { owner?: string; silenceMs?: number };
      if (typeof body !== "string" && body !== undefined && body !== null)
        return reject(new TypeError("only texts are sent to models"));
      try {
        checkLiteral(url, opened);
      } catch (error) {
        return reject(error);
      }
      const start = url.protocol === "https:" ? requestHttps : requestHttp;
      const request: ClientRequest = start(url, {
        method: init.method ?? "GET",
        agent: agents[url.protocol as keyof typeof agents],
        lookup: checkedLookup(opened, owner),
        timeout: silenceMs,
        headers: {
          ...Object.fromEntries(new Headers(init.headers)),
          ...(typeof body === "string" ? { "content-length": String(Buffer.byteLength(body)) } : {}),
        },
        ...(signal ? { signal } : {}),
      });
      request.on("error", reject);
      request.on("timeout", () => request.destroy(new Error("the model said nothing for too long")));
      request.on("upgrade", (_, socket) => {
        socket.destroy();
        reject(new Error("the server wants to speak another protocol"));
      });
      // Nobody catches what a listener throws: it would end the process.
      request.on("response", (response) => {
        try {
          resolve(toResponse(response));
        } catch (error) {
          response.destroy();
          reject(error);
        }
      });
      // Whatever way a connection ends, its caller does not wait on; once settled, this says nothing.
      request.on("close", () => reject(new Error("the connection ended without an answer")));
      request.end(body ?? undefined);
    });
}

function toResponse(response: IncomingMessage): Response {
  const said = response.statusCode ?? 0;
  // A server may say any three digits; a Response takes these.
  const status = said >= 200 && said <= 599 ? said : 502;
  const headers = new Headers();
  for (const [name, value] of Object.entries(response.headersDistinct)) {
    for (const one of value ?? []) headers.append(name, one);
  }
  if ([204, 205, 304].includes(status)) {
    response.resume();
    return new Response(null, { status, headers });
  }
  // What breaks off, or is too long, ends with the error of its reader; a reader who leaves ends the connection.
  const bounded = pipeline(response, atMost(answerMaxBytes), () => {});
  return new Response(toWeb(bounded), { status, headers });
}

/** Node's own `toWeb` throws where nobody catches it when a piece arrives just after its reader left. */
function toWeb(stream: Readable): ReadableStream<Uint8Array> {
  const pieces = stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
  return new ReadableStream(
    {
      async pull(controller) {
        const { done, value } = await pieces.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
      cancel: () => void stream.destroy(),
    },
    { highWaterMark: 0 },
  );
}

function atMost(maxBytes: number): Transform {
  let bytes = 0;
  return new Transform({
    transform(piece: Buffer, _, done) {
      bytes += piece.length;
      if (bytes <= maxBytes) done(null, piece);
      else done(new AnswerUnfit(`the answer is longer than ${maxBytes / 1024 ** 2} MiB`));
    },
  });
}
