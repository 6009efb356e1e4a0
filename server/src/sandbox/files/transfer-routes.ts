/**
 * The files host `files-<id>.sbx.<preview_domain>`. This host serves raw bytes under a signature instead of a token,
 * and is therefore separate from the API's routes. A browser may use a URL from any page: this host reads no cookie,
 * and no response can act as a page of this server.
 */
import { randomUUID } from "node:crypto";
import type { IncomingMessage, ServerResponse } from "node:http";
import { posix } from "node:path";
import { pipeline } from "node:stream/promises";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import type { App } from "#app.ts";
import { clientAddress, trustedProxies } from "#http/limits/client-address.ts";
import { lengthRequired, methodNotAllowed, payloadTooLarge } from "#http/errors.ts";
import { renderError } from "#http/render-error.ts";
import { endWithSlowReader } from "#http/streams/slow-readers.ts";
import type { FileStat } from "#machines/host/guest.ts";
import { onSandbox } from "../audit-target.ts";
import { requireAwake } from "../sandboxes/sandboxes.ts";
import { uploadMaxBytes } from "./limits.ts";
import { verify } from "./presign.ts";
import { openDownload, receiveUpload, statDownload, type ByteRange } from "./transfer.ts";

type Needs = Pick<App, "db" | "config" | "machines" | "secrets" | "clock" | "log">;

/** Serves one request to the files host of a sandbox (its whole id, `sbx_…`). Never throws. */
export type TransferHandler = (
  sandboxId: string,
  request: IncomingMessage,
  response: ServerResponse,
) => Promise<void>;

/** Idle timeout of an upload, which holds one of the machine's connections. */
const idleMs = 60_000;
/** Time that the server reads from a refused sender, so that the sender receives the reason. */
const hearOutMs = 10_000;

const methods = ["GET", "HEAD", "PUT", "OPTIONS"];

const headers = {
  "access-control-allow-origin": "*",
  "access-control-expose-headers": "content-disposition, content-range, etag, x-request-id",
  // A file from a sandbox is only ever a download, never a page of this host.
  "content-security-policy": "sandbox; default-src 'none'",
  "x-content-type-options": "nosniff",
  "cross-origin-resource-policy": "cross-origin",
  "cache-control": "private, no-store",
};

const preflightHeaders = {
  "access-control-allow-methods": methods.join(", "),
  "access-control-allow-headers": "*",
  "access-control-max-age": "600",
  allow: methods.join(", "),
};

export function transferHandler(app: Needs): TransferHandler {
  return async (sandboxId, request, response) => {
    const requestId = randomUUID();
    for (const [name, value] of Object.entries({ ...headers, "x-request-id": requestId })) {
      response.setHeader(name, value);
    }
    try {
      await answer(app, sandboxId, request, response);
    } catch (error) {
      if (response.headersSent) return void response.destroy();
      const rendered = renderError("sandbox", error, requestId);
      const { method } = request;
      if (rendered.isFault && !response.destroyed)
        app.log.error({ request_id: requestId, method, sandbox: sandboxId, error }, "a transfer failed");
      await refuse(request, response, rendered);
    }
  };
}

/** The signature is verified before any other work for the request. */
async function answer(
  app: Needs,
  sandboxId: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { method = "" } = request;
  if (!methods.includes(method)) throw methodNotAllowed(methods);
  if (method === "OPTIONS") return void response.writeHead(204, preflightHeaders).end();
  const query = new URLSearchParams(/\?(.*)$/s.exec(request.url ?? "")?.[1] ?? "");
  const { path, mayWake } = verify(app, { sandboxId, method: method === "PUT" ? "PUT" : "GET", query });
  noteUse(app, request, { sandboxId, method, path });
  if (!mayWake) await requireAwake(app, sandboxId);
  if (method === "PUT") await receive(app, sandboxId, path, request, response);
  else if (method === "HEAD") describe(await statDownload(app, sandboxId, path), path, response).end();
  else await send(app, sandboxId, path, request, response);
}

function noteUse(
  app: Needs,
  request: IncomingMessage,
  { sandboxId, method, path }: { sandboxId: string; method: string; path: string },
): void {
  accessLogOf(app).note({
    actor: {
      ...systemActor("presigned URL"),
      ip: clientAddress(request, trustedProxies(app.config.trustedProxies)),
    },
    action: "presigned_url.used",
    target: { kind: "sandbox", id: sandboxId, label: null },
    workspace: onSandbox.workspacesOf,
    detail: { method, path },
  });
}

async function receive(
  app: Needs,
  sandboxId: string,
  path: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const length = request.headers["content-length"];
  if (length === undefined || request.headers["transfer-encoding"] !== undefined) throw lengthRequired();
  if (Number(length) > uploadMaxBytes) throw payloadTooLarge(uploadMaxBytes);
  const written = await receiveUpload(app, sandboxId, path, contentOf(request));
  const body = JSON.stringify(written);
  response.writeHead(200, json(body)).end(body);
}

async function* contentOf(request: IncomingMessage): AsyncGenerator<Buffer> {
  // The timeout starts with the first byte, because waking a sandbox may take longer.
  request.setTimeout(idleMs, () => request.destroy());
  // Leaving the loop early must not close the connection, which still carries the refusal.
  yield* request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>;
}

async function send(
  app: Needs,
  sandboxId: string,
  path: string,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const { range, "if-range": ifRange } = request.headers;
  const wanted = range === undefined ? undefined : parseRange(range);
  const choose =
    wanted && ((stat: FileStat) => (ifRange === undefined || ifRange === etag(stat) ? wanted : undefined));
  const { stat, offset, length, content } = await openDownload(app, sandboxId, path, choose);
  describe(stat, path, response).setHeader("content-length", length);
  if (length < stat.sizeBytes) {
    response.statusCode = 206;
    response.setHeader("content-range", `bytes ${offset}-${offset + length - 1}/${stat.sizeBytes}`);
  }
  endWithSlowReader(response);
  await pipeline(content, (pieces) => exactly(pieces as AsyncIterable<Buffer>, length), response);
}

/**
 * Yields exactly the announced number of bytes. A file that grew is cut there; a file that shrank aborts the response.
 */
async function* exactly(pieces: AsyncIterable<Buffer>, length: number): AsyncGenerator<Buffer> {
  let left = length;
  for await (const piece of pieces) {
    if (left === 0) break;
    yield piece.length > left ? piece.subarray(0, left) : piece;
    left -= Math.min(piece.length, left);
  }
  if (left > 0) throw new Error("the file became shorter while it was read");
}

function describe(stat: FileStat, path: string, response: ServerResponse): ServerResponse {
  const all = {
    "content-type": "application/octet-stream",
    "content-length": String(stat.sizeBytes),
    "content-disposition": disposition(posix.basename(path)),
    "accept-ranges": "bytes",
    "last-modified": stat.modifiedAt.toUTCString(),
    etag: etag(stat),
  };
  for (const [name, value] of Object.entries(all)) response.setHeader(name, value);
  return response;
}

function etag({ modifiedAt, sizeBytes }: FileStat): string {
  return `"${modifiedAt.getTime().toString(36)}-${sizeBytes.toString(36)}"`;
}

/** RFC 6266: `filename*` has the full name; `filename` has an ASCII approximation for older clients. */
function disposition(name: string): string {
  const plain = name.replaceAll(/[^\x20-\x7e]|["\\%]/g, "_");
  const full = encodeURIComponent(name.toWellFormed()).replaceAll(
    /['()*]/g,
    (mark) => `%${mark.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `attachment; filename="${plain}"; filename*=UTF-8''${full}`;
}

/**
 * Parses a `Range` header. Undefined if the text is not a single range of bytes; the client then gets the whole file
 * (RFC 9110, 14.2).
 */
function parseRange(text: string): ByteRange | undefined {
  const [, first, last] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(text.trim()) ?? [];
  if (first === undefined || last === undefined || (first === "" && last === "")) return undefined;
  if (first === "") return { count: Number(last) };
  const range = { first: Number(first), last: last === "" ? Number.MAX_SAFE_INTEGER - 1 : Number(last) };
  return range.last < range.first ? undefined : range;
}

function json(body: string): Record<string, string> {
  return {
    "content-type": "application/json; charset=utf-8",
    "content-length": String(Buffer.byteLength(body)),
  };
}

/**
 * A refusal may be sent while the client still writes. Closing the connection would destroy the response. So the
 * response is sent, further input is read and dropped for a while, and then the connection closes.
 */
async function refuse(
  request: IncomingMessage,
  response: ServerResponse,
  { status, headers: more, body }: ReturnType<typeof renderError>,
): Promise<void> {
  const text = JSON.stringify(body);
  const isSending =
    request.headers["content-length"] !== undefined || request.headers["transfer-encoding"] !== undefined;
  if (isSending && !request.complete) response.setHeader("connection", "close");
  response.writeHead(status, { ...more, ...json(text) });
  response.write(text);
  if (isSending && !request.complete && !response.destroyed) await hearOut(request, response);
  response.end();
}

function hearOut(request: IncomingMessage, response: ServerResponse): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(stopReading, hearOutMs);
    function stopReading(): void {
      clearTimeout(timer);
      resolve();
    }
    request.once("end", stopReading);
    response.once("close", stopReading);
    request.resume();
  });
}
