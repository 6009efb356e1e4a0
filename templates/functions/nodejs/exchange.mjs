/**
 * Handles a request: makes a web-standard `Request` of Node's request, and streams the handler's response back.
 * Whatever the handler does, the caller gets a valid response or an error, and never a stack.
 */
import { current, described, say } from "./log.mjs";

const withoutBody = new Set(["GET", "HEAD"]);
/** Headers of the connection belong to the wrapper. */
const hopByHop = new Set(["connection", "keep-alive", "transfer-encoding", "upgrade", "trailer", "te"]);
const messages = {
  function_error: "The function failed; its logs say why.",
  function_bad_response: "The function answered with something that is no response; its logs say more.",
  function_timeout: "The function did not answer in time.",
  function_bad_request: "The function cannot be asked in this way.",
  payload_too_large: "The body of the request is too large.",
};

/** Resolves when the exchange is over. */
export async function exchange(handler, { incoming, outgoing, limits, waitUntil }) {
  const requestId = String(incoming.headers["x-request-id"] ?? "");
  await current.run({ requestId }, () =>
    new Exchange({ incoming, outgoing, limits, requestId }).run(handler, waitUntil),
  );
}

class Exchange {
  #incoming;
  #outgoing;
  #limits;
  #requestId;
  #leaving = new AbortController();
  #over = Promise.withResolvers();

  constructor({ incoming, outgoing, limits, requestId }) {
    this.#incoming = incoming;
    this.#outgoing = outgoing;
    this.#limits = limits;
    this.#requestId = requestId;
  }

  async run(handler, waitUntil) {
    const { timeoutMs } = this.#limits;
    const late = setTimeout(() => this.#late(), timeoutMs);
    const closed = () => {
      if (!this.#outgoing.writableFinished) this.#leave(new Error("the caller left"));
      this.#over.resolve();
    };
    this.#outgoing.once("close", closed);
    try {
      // A response after the timeout is discarded.
      await Promise.race([this.#answer(handler, waitUntil), this.#over.promise]);
    } catch (error) {
      if (this.#outgoing.destroyed) return;
      say("error", described(error));
      this.#fail(500, "function_error");
    } finally {
      clearTimeout(late);
    }
  }

  async #answer(handler, waitUntil) {
    if (Number(this.#incoming.headers["content-length"] ?? 0) > this.#limits.maxBody) return this.#tooLarge();
    let request;
    try {
      request = this.#toRequest();
    } catch {
      return this.#fail(405, "function_bad_request");
    }
    const answer = await handler(request, { waitUntil, requestId: this.#requestId });
    if (this.#outgoing.headersSent || this.#outgoing.destroyed) return undefined;
    const response = toResponse(answer);
    if (response === undefined) {
      const kind = answer === null ? "null" : typeof answer;
      say(
        "error",
        `The handler answered with ${kind}: a Response, a string, bytes or an object for JSON is one.`,
      );
      return this.#fail(500, "function_bad_response");
    }
    return this.#send(response);
  }

  #toRequest() {
    const { method, headers, rawHeaders, url } = this.#incoming;
    const given = new Headers();
    for (let at = 0; at < rawHeaders.length; at += 2) given.append(rawHeaders[at], rawHeaders[at + 1]);
    const hasBody =
      !withoutBody.has(method) &&
      (headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) > 0);
    const scheme = headers["x-forwarded-proto"] === "https" ? "https" : "http";
    // Joined as text: as a URL reference, a path that begins with two slashes would name another host.
    const path = url.startsWith("/") ? url : `/${url}`;
    return new Request(new URL(`${scheme}://${headers.host ?? "localhost"}${path}`), {
      method,
      headers: given,
      signal: this.#leaving.signal,
      ...(hasBody ? { body: this.#body(), duplex: "half" } : {}),
    });
  }

  /** Pulled: the caller can send only as fast as the handler reads. */
  #body() {
    const pieces = this.#incoming[Symbol.asyncIterator]();
    let bytes = 0;
    return new ReadableStream(
      {
        type: "bytes",
        pull: async (controller) => {
          const { done, value } = await pieces.next();
          if (done) {
            controller.close();
            controller.byobRequest?.respond(0);
            return;
          }
          bytes += value.length;
          if (bytes > this.#limits.maxBody) {
            this.#tooLarge();
            throw new RangeError(messages.payload_too_large);
          }
          controller.enqueue(new Uint8Array(value));
        },
        cancel: () => void this.#incoming.resume(),
      },
      { highWaterMark: 0 },
    );
  }

  async #send(response) {
    const { body, status } = response;
    const headers = [];
    // `fetch` has decompressed the body, so the encoding header goes.
    const isFetched = response.url !== "";
    for (const [name, value] of response.headers) {
      const isStale = isFetched && (name === "content-encoding" || name === "content-length");
      if (!hopByHop.has(name) && !isStale) headers.push(name, value);
    }
    this.#outgoing.writeHead(status, response.statusText || undefined, headers);
    if (body === null || this.#incoming.method === "HEAD") {
      await body?.cancel();
      this.#outgoing.end();
      return;
    }
    // The head is sent alone if no body follows soon, and otherwise together with the body.
    const head = setImmediate(() => this.#outgoing.flushHeaders());
    const reader = body.getReader();
    this.#leaving.signal.addEventListener("abort", () => void reader.cancel().catch(() => {}), {
      once: true,
    });
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        if (!this.#outgoing.write(toBytes(value))) await this.#drained();
        clearImmediate(head);
        if (this.#outgoing.destroyed) return;
      }
      this.#outgoing.end();
    } catch (error) {
      say("error", described(error));
      // A partial response must not look complete.
      this.#outgoing.destroy();
    } finally {
      clearImmediate(head);
    }
  }

  #drained() {
    return Promise.race([
      new Promise((resolve) => this.#outgoing.once("drain", resolve)),
      this.#over.promise,
    ]);
  }

  #late() {
    const seconds = this.#limits.timeoutMs / 1000;
    say("error", `Timed out: the function has ${seconds} s for an answer and all of its body.`);
    this.#fail(504, "function_timeout");
    this.#leave(new DOMException(messages.function_timeout, "TimeoutError"));
    this.#over.resolve();
  }

  #tooLarge() {
    this.#fail(413, "payload_too_large");
  }

  #leave(reason) {
    if (!this.#leaving.signal.aborted) this.#leaving.abort(reason);
  }

  #fail(status, code) {
    if (this.#outgoing.headersSent) return void this.#outgoing.destroy();
    const error = { code, message: messages[code], request_id: this.#requestId };
    const body = JSON.stringify({ error });
    this.#outgoing.writeHead(status, {
      "content-type": "application/json; charset=utf-8",
      "content-length": Buffer.byteLength(body),
      "cache-control": "no-store",
      "x-function-error": code,
      // The rest of the body is discarded.
      ...(this.#incoming.complete ? {} : { connection: "close" }),
    });
    this.#outgoing.end(body);
  }
}

function toResponse(answer) {
  if (answer instanceof Response || answer?.[Symbol.toStringTag] === "Response") {
    const isWhole = answer.status >= 200 && answer.status <= 599 && !answer.bodyUsed;
    return isWhole ? answer : undefined;
  }
  if (typeof answer === "string") return new Response(answer);
  if (ArrayBuffer.isView(answer) || answer instanceof ArrayBuffer) {
    return new Response(answer, { headers: { "content-type": "application/octet-stream" } });
  }
  if (answer === null || typeof answer !== "object") return undefined;
  // Plain objects, `process.env` and instances of a handler's own classes; no Map, Error or Promise.
  const isPlain = Array.isArray(answer) || Object.prototype.toString.call(answer) === "[object Object]";
  return isPlain || typeof answer.toJSON === "function" ? Response.json(answer) : undefined;
}

function toBytes(piece) {
  if (typeof piece === "string" || piece instanceof Uint8Array) return piece;
  throw new TypeError("the body of a response is a stream of bytes");
}
