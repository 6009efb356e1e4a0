/**
 * A `fetch` for models. A caller chooses the address, so connections go only to addresses that were checked. Redirects
 * are not followed, because the request carries a key. Connections are kept alive, because a handshake is a large part
 * of a step's time beside the model's own.
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

/** Error for an answer that breaks a limit. A retry would break the limit again. */
export class InvalidAnswer extends Error {
  override readonly name = "AnswerUnfit";
}

/** Timeout until the first byte, and between two bytes. Models that reason before they respond take minutes. */
const silentMs = 300_000;
/** Maximum size of one answer on the wire. The limit exceeds any model's output and fits in memory. */
const answerMaxBytes = 64 * 1024 ** 2;
/** Idle time after which a kept connection is closed. Most servers close idle connections later. */
const keptMs = 4_000;

/** Returns a fetch whose DNS lookups count against the limit of `owner`, a workspace. */
export function ownedFetch(fetch: Fetch, owner: string): Fetch {
  return (input, init) => fetch(input, { ...init, owner } as RequestInit);
}

/** Creates the fetch of a server process. `opened` lists the private hosts to which connections are allowed. */
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
        return reject(new TypeError("the body of a model request must be text"));
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
      request.on("timeout", () =>
        request.destroy(new Error(`the server sent nothing for ${silenceMs / 1000} s`)),
      );
      request.on("upgrade", (_, socket) => {
        socket.destroy();
        reject(new Error("the server switched to another protocol"));
      });
      // An error thrown in a listener would end the process.
      request.on("response", (response) => {
        try {
          resolve(toResponse(response));
        } catch (error) {
          response.destroy();
          reject(error);
        }
      });
      // Rejects when the connection closes before a response. A close after the promise settled has no effect.
      request.on("close", () => reject(new Error("the connection ended without a response")));
      request.end(body ?? undefined);
    });
}

function toResponse(response: IncomingMessage): Response {
  const said = response.statusCode ?? 0;
  // A server may send any three digits; `Response` accepts 200 to 599.
  const status = said >= 200 && said <= 599 ? said : 502;
  const headers = new Headers();
  for (const [name, value] of Object.entries(response.headersDistinct)) {
    for (const one of value ?? []) headers.append(name, one);
  }
  if ([204, 205, 304].includes(status)) {
    response.resume();
    return new Response(null, { status, headers });
  }
  // A broken or long body fails the reader. If the reader cancels, the connection is closed.
  const bounded = pipeline(response, atMost(answerMaxBytes), () => {});
  return new Response(toWeb(bounded), { status, headers });
}

/**
 * Converts a stream. Node's own `toWeb` throws an uncaught error if a chunk arrives just after the reader cancelled.
 */
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
      else done(new InvalidAnswer(`the answer exceeds ${maxBytes / 1024 ** 2} MiB`));
    },
  });
}
