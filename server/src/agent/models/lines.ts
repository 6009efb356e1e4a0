/**
 * Converts all line endings of a response to line feeds. At each line, the SDK's parser of event streams searches for
 * the next carriage return and the next line feed. If either is far away or missing, a megabyte of empty lines blocks
 * the process for minutes. In JSON a line ending is white space, so the conversion changes nothing else.
 */
import type { Fetch } from "./fetch.ts";

const [lineFeed, carriageReturn] = [10, 13];

export function withLineFeeds(fetch: Fetch): Fetch {
  return async (input, init) => {
    const response = await fetch(input, init);
    if (!response.body) return response;
    const { status, statusText, headers } = response;
    return new Response(response.body.pipeThrough(lineFeeds()), { status, statusText, headers });
  };
}

export function lineFeeds(): TransformStream<Uint8Array, Uint8Array> {
  let wasReturn = false;
  return new TransformStream({
    transform(piece, controller) {
      if (!wasReturn && !piece.includes(carriageReturn)) return controller.enqueue(piece);
      const kept = new Uint8Array(piece.length);
      let length = 0;
      for (const byte of piece) {
        // Skips the line feed of a CR LF pair. The pair's carriage return is already converted.
        if (byte !== lineFeed || !wasReturn) {
          kept[length] = byte === carriageReturn ? lineFeed : byte;
          length += 1;
        }
        wasReturn = byte === carriageReturn;
      }
      if (length > 0) controller.enqueue(kept.subarray(0, length));
    },
  });
}
