/** A request to the dev world, as its handlers receive it. */
import type { IncomingHttpHeaders } from "node:http";

/** A request with its whole body, and the functions that respond. */
export interface Exchange {
  path: string;
  headers: IncomingHttpHeaders;
  body: string;
  reply: (status: number, json: object) => void;
  /** Sends each text as an event of a stream. */
  stream: (events: readonly string[]) => void;
}
