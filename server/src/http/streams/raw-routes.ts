/**
 * Serves paths that are not routes: a site handles everything below its prefix. A site streams in both directions, with
 * only its own body limit. Requests get a request id and a log line, and no other feature of routes.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import type { Logger } from "pino";
import type { DomainError } from "#lib/errors.ts";
import { renderError } from "../render-error.ts";
import type { OpenStreams } from "./open-streams.ts";

export interface RawSite {
  /** Path prefix of the site, such as `/git/`. */
  prefix: string;
  /** `draining` aborts when the server starts to shut down, so that exchanges without an end of their own end. */
  handle(
    request: IncomingMessage,
    response: ServerResponse,
    draining: AbortSignal,
    streams: OpenStreams,
  ): Promise<void>;
}

/** Returns true if a site handles the request. */
export function serveRaw(
  sites: readonly RawSite[],
  request: IncomingMessage,
  response: ServerResponse,
  options: {
    requestId: string;
    draining: AbortSignal;
    log: Pick<Logger, "info" | "error">;
    streams: OpenStreams;
    /** Counts a request without a credential; throws when its address exceeds the limit. */
    countAddress: () => void;
  },
): boolean {
  const site = sites.find(({ prefix }) => request.url?.startsWith(prefix));
  if (site === undefined) return false;
  const { requestId, draining, log, streams, countAddress } = options;
  const began = performance.now();
  const { method } = request;
  const line = { request_id: requestId, method, route: `${site.prefix}*` };
  response.setHeader("x-request-id", requestId);
  response.setHeader("x-content-type-options", "nosniff");
  if (draining.aborted) response.setHeader("connection", "close");
  response.on("error", () => {});
  response.once("close", () => {
    const duration_ms = Math.round((performance.now() - began) * 10) / 10;
    log.info({ ...line, status: response.statusCode, duration_ms }, "request");
  });
  try {
    if (request.headers.authorization === undefined) countAddress();
  } catch (error) {
    refuse(response, error as DomainError);
    return true;
  }
  site.handle(request, response, draining, streams).catch((error: unknown) => {
    const { status, headers, body, isFault } = renderError("platform", error, requestId);
    if (isFault) log.error({ ...line, error }, "request failed");
    if (response.headersSent) return void response.destroy();
    response.writeHead(status, { ...headers, "content-type": "text/plain; charset=utf-8" });
    const quote = status === 500 ? ` The request id is ${requestId}.` : "";
    response.end(`${String(body["detail"])}${quote}\n`);
  });
  return true;
}

/** Responds in plain text, which git and browsers display. */
function refuse(response: ServerResponse, { status, detail, meta }: DomainError): void {
  response.writeHead(status, {
    "content-type": "text/plain; charset=utf-8",
    "retry-after": String(meta.retry_after),
    connection: "close",
  });
  response.end(`${detail}\n`);
}
