/**
 * The connection of one model call. The response is bounded before the SDK parses it: endless lines, empty events and
 * comments fail the call. Only the beginning of an error response is read.
 */
import { setImmediate as nextTurn } from "node:timers/promises";
import { InvalidAnswer, type Fetch } from "./fetch.ts";
import { withLineFeeds } from "./lines.ts";

/**
 * Maximum number of bytes without content. Providers repeat the request's tools before the content and the whole answer
 * after it. Parsing a line as JSON may take fourteen times the line's length in memory.
 */
const silentMaxBytes = 4 * 1024 ** 2;
/**
 * Maximum number of lines without content. Some servers send the reasoning of open models in separate events, which the
 * SDK ignores.
 */
const silentMaxLines = 100_000;
const refusalMaxBytes = 64 * 1024;

const lineFeed = 10;
/** Number of last bytes in which the stream's end mark is searched. Empty lines may follow the mark. */
const endBytes = 64;

/**
 * Bytes that all calls together may read in one turn of the event loop. Parsing 16 KiB of small events takes about 30
 * ms. Without a limit, all received bytes would be parsed in one turn.
 */
const turnBytes = 16 * 1024;
let left = turnBytes;
let next: Promise<void> | undefined;

async function turnOf(bytes: number): Promise<void> {
  while (left <= 0) {
    next ??= nextTurn().then(() => {
      next = undefined;
      left = turnBytes;
    });
    await next;
  }
  left -= bytes;
}

export class Wire {
  readonly fetch: Fetch;
  readonly #received: () => void;
  #bytes = 0;
  #lines = 0;
  #end = "";

  /**
   * Wraps `fetch` with the limits. `received` is called for the headers of the response and for each piece of the body.
   */
  constructor(fetch: Fetch, received: () => void = () => {}) {
    this.#received = received;
    const inLines = withLineFeeds(fetch);
    this.fetch = async (input, init) => {
      const response = await inLines(input, init);
      this.#received();
      if (!response.body) return response;
      const { ok, status, statusText, headers } = response;
      const body = response.body.pipeThrough(ok ? this.#limited() : firstOf(refusalMaxBytes));
      return new Response(body, { status, statusText, headers });
    };
  }

  /** Resets the counts of bytes and lines without content. */
  onContent(): void {
    this.#bytes = 0;
    this.#lines = 0;
  }

  /** True if the stream ended with the server's end mark, so the response is complete. */
  get isDone(): boolean {
    return /(?:^|\n)data: ?\[DONE\]\s*$/.test(this.#end);
  }

  #limited(): TransformStream<Uint8Array, Uint8Array> {
    return new TransformStream({
      transform: async (piece, controller) => {
        this.#received();
        this.#bytes += piece.length;
        this.#end = (this.#end + Buffer.from(piece.subarray(-endBytes)).toString("latin1")).slice(-endBytes);
        for (let at = piece.indexOf(lineFeed); at !== -1; at = piece.indexOf(lineFeed, at + 1))
          this.#lines += 1;
        if (this.#bytes > silentMaxBytes)
          throw new InvalidAnswer(`its server sent ${silentMaxBytes / 1024 ** 2} MiB without content`);
        if (this.#lines > silentMaxLines)
          throw new InvalidAnswer(`its server sent ${silentMaxLines} lines without content`);
        for (let at = 0; at < piece.length; at += turnBytes) {
          const some = piece.subarray(at, at + turnBytes);
          await turnOf(some.length);
          controller.enqueue(some);
        }
      },
    });
  }
}

function firstOf(maxBytes: number): TransformStream<Uint8Array, Uint8Array> {
  let left = maxBytes;
  return new TransformStream({
    transform(piece, controller) {
      controller.enqueue(piece.subarray(0, left));
      left -= piece.length;
      if (left <= 0) controller.terminate();
    },
  });
}
