/**
 * `/backups/<id>` serves the bytes of a backup to any client with a signed URL. The route needs no token and reads no
 * cookie. The signature is verified first. Ranges are supported, so that a client can resume a large download.
 */
import type { IncomingMessage, ServerResponse } from "node:http";
import { pipeline } from "node:stream/promises";
import { accessLogOf } from "#accounts/activity/access-log.ts";
import { systemActor } from "#accounts/activity/activity.ts";
import { clientAddress, trustedProxies } from "#http/limits/client-address.ts";
import { methodNotAllowed } from "#http/errors.ts";
import type { RawSite } from "#http/streams/raw-routes.ts";
import { renderError } from "#http/render-error.ts";
import { endWithSlowReader } from "#http/streams/slow-readers.ts";
import { BlobNotFound } from "#lib/blobs/blobs.ts";
import { findAddon } from "../addons/find.ts";
import type { BackupsContext } from "./context.ts";
import { downloadsPrefix, filenameOf, verify } from "./download.ts";
import { backupNotFound } from "./errors.ts";
import { findById } from "./store.ts";

type Needs = Pick<BackupsContext, "app" | "blobs" | "engines">;

const methods = ["GET", "HEAD"];

/** Returns the handler of downloads. A download must make progress in every window of `windowMs`. */
export function downloadSite(backups: Needs, options: { windowMs?: number } = {}): RawSite {
  return {
    prefix: downloadsPrefix,
    handle: async (request, response) => {
      try {
        await answer(backups, request, response, options.windowMs);
      } catch (error) {
        // The client is gone, or has received a part of the response. An aborted connection is the only way left to
        // report the error.
        if (response.destroyed || response.headersSent) return void response.destroy();
        const { status, headers, body, isFault } = renderError("platform", error, "");
        if (isFault) throw error;
        response.writeHead(status, { ...headers, "content-type": "application/json; charset=utf-8" });
        response.end(JSON.stringify(body));
      }
    },
  };
}

async function answer(
  { app, blobs, engines }: Needs,
  request: IncomingMessage,
  response: ServerResponse,
  windowMs?: number,
): Promise<void> {
  const { method = "" } = request;
  if (!methods.includes(method)) throw methodNotAllowed(methods);
  const id = verify(app, new URL(request.url ?? "/", "http://localhost"));
  const row = await findById(app.db, id);
  const addon = row && (await findAddon(app.db, row.addon_id));
  if (!row?.blob_key || row.size_bytes === null || row.status !== "completed" || row.deleted_at || !addon)
    throw backupNotFound();
  accessLogOf(app).note({
    actor: {
      ...systemActor("presigned URL"),
      ip: clientAddress(request, trustedProxies(app.config.trustedProxies)),
    },
    action: "backup_url.used",
    target: { kind: "addon", id: addon.id, label: addon.name },
    workspace: addon.workspace_id,
    detail: { backup_id: id },
  });
  const size = row.size_bytes;
  const range = rangeOf(request, `"${row.sha256}"`, size);
  const all = {
    "content-type": "application/octet-stream",
    "content-disposition": `attachment; filename="${filenameOf(addon, row, engines[addon.kind].extension)}"`,
    "accept-ranges": "bytes",
    "cache-control": "private, no-store",
    etag: `"${row.sha256}"`,
  };
  for (const [name, value] of Object.entries(all)) response.setHeader(name, value);
  if (range === "unsatisfiable") {
    response.writeHead(416, { "content-range": `bytes */${size}` }).end();
    return;
  }
  const { start, end } = range ?? { start: 0, end: size };
  const partly = range ? { "content-range": `bytes ${start}-${end - 1}/${size}` } : {};
  const headers = { ...partly, "content-length": String(end - start) };
  if (method === "HEAD") return void response.writeHead(range ? 206 : 200, headers).end();
  const content = await blobs.get(row.blob_key, { start, end }).catch((error: unknown) => {
    throw error instanceof BlobNotFound ? backupNotFound() : error;
  });
  response.writeHead(range ? 206 : 200, headers);
  endWithSlowReader(response, { windowMs });
  await pipeline(content, response);
}

/**
 * Returns the requested range; its `end` is exclusive. Returns undefined unless the header requests a single range of
 * this version: the whole file is sent then (RFC 9110, 14.2).
 */
function rangeOf(
  request: IncomingMessage,
  etag: string,
  size: number,
): { start: number; end: number } | "unsatisfiable" | undefined {
  const { range, "if-range": ifRange } = request.headers;
  const [, first = "", last = ""] = /^bytes=(\d{0,15})-(\d{0,15})$/.exec(range?.trim() ?? "") ?? [];
  if ((first === "" && last === "") || (ifRange !== undefined && ifRange !== etag)) return undefined;
  const start = first === "" ? Math.max(0, size - Number(last)) : Number(first);
  const end = first === "" || last === "" ? size : Math.min(size, Number(last) + 1);
  if (first !== "" && last !== "" && Number(last) < Number(first)) return undefined;
  return start >= end ? "unsatisfiable" : { start, end };
}
