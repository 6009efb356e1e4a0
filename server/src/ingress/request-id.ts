import { randomUUID } from "node:crypto";
import type { IncomingMessage } from "node:http";

/** A visitor's own is kept where it can stand in a log line. */
export function requestIdOf({ headers }: Pick<IncomingMessage, "headers">): string {
  const own = headers["x-request-id"];
  return typeof own === "string" && /^[A-Za-z0-9._-]{1,128}$/.test(own) ? own : randomUUID();
}
