/**
 * Lines that end with a line feed alone, whatever a server ends them with. The parser of event streams looks for the next
 * carriage return and the next line feed at each line anew: where one of them is far away, or nowhere, a megabyte of
 * empty lines holds the process up for minutes. In JSON a line's end is a space, so nothing else is changed by this.
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
        // The second half of a line's end, whose first half was one already.
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
