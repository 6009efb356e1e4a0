/**
 * Fetch for MCP servers. Requests go only to checked addresses and the server's own origin, because the secret is in
 * the headers. Responses and single events of a stream are bounded, because they are held in memory.
 */
import type { Fetch } from "../models/fetch.ts";
import { withLineFeeds } from "../models/lines.ts";

class TooLong extends Error {
  override readonly name = "TooLong";
}

export interface Bounds {
  /** Maximum size of a plain response, and of each event of a stream. */
  answerMaxBytes: number;
  /** Maximum number of bytes that are read from the server in total. */
  allMaxBytes: number;
}

/** Counts the bytes that were read from the server. */
export interface Meter {
  bytes: number;
}

export function boundedFetch(given: Fetch, origin: string, bounds: Bounds, meter: Meter): Fetch {
  const fetch = withLineFeeds(given);
  return async (input, init) => {
    const { href, origin: asked } = new URL(input instanceof Request ? input.url : input);
    if (asked !== origin) throw new Error(`the server redirects to another origin, ${asked}`);
    const response = await fetch(href, init);
    if (!response.body) return response;
    const isStream = /^text\/event-stream\b/i.test(response.headers.get("content-type") ?? "");
    let bytes = 0;
    const counted = new TransformStream<Uint8Array, Uint8Array>({
      transform(piece, controller) {
        meter.bytes += piece.length;
        bytes = isStream ? afterLastEvent(bytes, piece) : bytes + piece.length;
        if (bytes > bounds.answerMaxBytes || meter.bytes > bounds.allMaxBytes)
          return controller.error(new TooLong("the server's response is too long"));
        controller.enqueue(piece);
      },
    });
    const { status, statusText, headers } = response;
    return new Response(response.body.pipeThrough(counted), { status, statusText, headers });
  };
}

/**
 * Returns the bytes since the last end of an event, which is an empty line. An empty line that is split across two
 * pieces is missed, and the two events count as one event.
 */
function afterLastEvent(bytes: number, piece: Uint8Array): number {
  const buffer = Buffer.from(piece.buffer, piece.byteOffset, piece.byteLength);
  const end = buffer.lastIndexOf("\n\n");
  return end < 0 ? bytes + piece.length : piece.length - end;
}
