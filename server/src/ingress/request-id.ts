import { randomUUID } from "node:crypto";
import type { IncomingMessage } from "node:http";

/** Keeps a visitor's own id if it is safe in a log line. Otherwise generates a new id. */
export function requestIdOf({ headers }: Pick<IncomingMessage, "headers">): string {
  const own = headers["x-request-id"];
  return typeof own === "string" && /^[A-Za-z0-9._-]{1,128}$/.test(own) ? own : randomUUID();
}
