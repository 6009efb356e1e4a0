import type { FastifyReply, FastifyRequest } from "fastify";
import { z } from "zod";
import type { Actor } from "#accounts/actor.ts";
import type { App } from "#app.ts";
import { defineRoute, type Route, streamed } from "#http/define-route.ts";
import { openEventStream } from "#http/streams/sse.ts";
import { fileErrors, machineErrors, notPermitted } from "#machines/errors.ts";
import { onSandbox } from "../audit-target.ts";
import { readErrors, runningErrors, sandboxTerminated } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { makeDirectory, move, read, remove, stat, writeBatch, writeFile } from "./files.ts";
import { tooManyWatches } from "./errors.ts";
import { batchBodyLimit, fileBodyLimit } from "./limits.ts";
import { presign, type TransferMethod } from "./presign.ts";
import {
  Batch,
  BatchResult,
  FileDeleteQuery,
  FileQuery,
  FileRead,
  FileReadQuery,
  FileStat,
  FileWrite,
  FileWritten,
  MakeDirectory,
  Move,
  Presign,
  Presigned,
  WatchEvent,
  WatchQuery,
} from "./schema.ts";
import { startWatch } from "./watch.ts";

const common = {
  api: "sandbox",
  tag: "Files",
  params: SandboxParams,
  errors: [...runningErrors, ...machineErrors, ...fileErrors],
} as const;

/** Maximum of paths that the audit entry of a batch lists. The entry counts the other paths. */
const auditedPaths = 10;

const presignedDetail =
  (method: TransferMethod) =>
  ({ body }: { body: z.output<typeof Presign> }) => ({
    method,
    path: body.path,
    expires_in: body.expires_in,
  });

export const fileRoutes = (app: App): Route[] => [
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files",
    operationId: "writeFile",
    summary: "Write a file",
    scope: "sandboxes:write",
    body: FileWrite,
    bodyLimit: fileBodyLimit,
    responses: { 200: FileWritten },
    audit: { ...onSandbox, action: "file.written", detail: ({ body }) => ({ path: body.path }) },
    handler: ({ actor, params, body }) => writeFile(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/files",
    operationId: "readFile",
    summary: "Read a file or list a directory",
    scope: "sandboxes:read",
    query: FileReadQuery,
    responses: { 200: FileRead },
    audit: { ...onSandbox, action: "file.read", detail: ({ query }) => ({ path: query.path }) },
    handler: ({ actor, params, query }) => read(app, actor, params.id, query.path, query),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/{id}/files",
    operationId: "deleteFile",
    whileSuspended: false,
    summary: "Delete a file or directory",
    description:
      "Set `recursive=true` to delete a directory with its contents. Symlinks in it are not followed. A failed request may have deleted a part of the directory.",
    scope: "sandboxes:write",
    query: FileDeleteQuery,
    responses: { 204: null },
    audit: {
      ...onSandbox,
      action: "file.deleted",
      detail: ({ query }) => ({ path: query.path, recursive: query.recursive }),
    },
    handler: ({ actor, params, query }) => remove(app, actor, params.id, query.path, query),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/mkdir",
    operationId: "makeDirectory",
    summary: "Create a directory",
    scope: "sandboxes:write",
    body: MakeDirectory,
    responses: { 201: FileStat },
    audit: { ...onSandbox, action: "directory.created", detail: ({ body }) => ({ path: body.path }) },
    handler: ({ actor, params, body }) => makeDirectory(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/move",
    operationId: "moveFile",
    summary: "Move or rename a file or directory",
    scope: "sandboxes:write",
    body: Move,
    responses: {
      200: z
        .object({
          from: z.string().describe("Absolute path before the move."),
          to: z.string().describe("Absolute path after the move."),
        })
        .meta({ id: "FileMoved" }),
    },
    audit: { ...onSandbox, action: "file.moved", detail: ({ body }) => ({ from: body.from, to: body.to }) },
    handler: ({ actor, params, body }) => move(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/files/stat",
    operationId: "statFile",
    summary: "Get the metadata of a path",
    description: "Responds with 200 and `exists: false`, not with 404, if nothing exists at the path.",
    scope: "sandboxes:read",
    query: FileQuery,
    responses: { 200: FileStat },
    handler: ({ actor, params, query }) => stat(app, actor, params.id, query.path),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/batch",
    operationId: "writeFiles",
    summary: "Write many files",
    description:
      "A failed file does not stop the others: check `error` of every result. Contents have at most 16 MiB each and 48 MiB together, after decoding.",
    scope: "sandboxes:write",
    body: Batch,
    bodyLimit: batchBodyLimit,
    responses: { 200: BatchResult },
    audit: {
      ...onSandbox,
      action: "file.written",
      detail: ({ body }) => ({
        files: body.files.length,
        paths: body.files.slice(0, auditedPaths).map(({ path }) => path),
      }),
    },
    handler: ({ actor, params, body }) => writeBatch(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/files/watch",
    operationId: "watchFiles",
    summary: "Watch a directory for changes",
    description:
      "Responds with server-sent events whose `data:` lines are FileWatchEvent objects. The first event is `watching`; changes after it are reported. Changes of one file in quick succession become one event. A pause ends the watch with the event `ended` and the code `sandbox_paused`.",
    scope: "sandboxes:read",
    extension: true,
    query: WatchQuery,
    responses: {
      200: {
        contentType: "text/event-stream",
        description: "Changes as server-sent events",
        schema: WatchEvent,
      },
    },
    errors: [...common.errors, tooManyWatches],
    audit: { ...onSandbox, action: "directory.watched", detail: ({ query }) => ({ path: query.path }) },
    handler: ({ actor, params, query, request, reply }) =>
      streamWatch(app, actor, params.id, query, request, reply),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/presign-download",
    operationId: "presignDownload",
    summary: "Create a URL to download a file",
    description:
      "The URL works without a token. GET streams the file as an attachment and supports ranges; HEAD returns the size. The first use resumes a paused sandbox with `auto_resume`, unless a viewer of the team created the URL.",
    scope: "sandboxes:read",
    body: Presign,
    responses: { 200: Presigned },
    errors: [...readErrors, sandboxTerminated],
    audit: { ...onSandbox, action: "presigned_url.created", detail: presignedDetail("GET") },
    handler: ({ actor, params, body }) => presign(app, actor, params.id, "GET", body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/presign-upload",
    operationId: "presignUpload",
    summary: "Create a URL to upload a file",
    description:
      "The URL works without a token. PUT accepts the raw bytes, up to 512 MiB, and requires `Content-Length`. The file appears whole, with mode 0644, or not at all.",
    scope: "sandboxes:write",
    body: Presign,
    responses: { 200: Presigned },
    errors: [...readErrors, sandboxTerminated, notPermitted],
    audit: { ...onSandbox, action: "presigned_url.created", detail: presignedDetail("PUT") },
    handler: ({ actor, params, body }) => presign(app, actor, params.id, "PUT", body),
  }),
];

async function streamWatch(
  app: App,
  actor: Actor,
  id: string,
  query: z.output<typeof WatchQuery>,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<typeof streamed> {
  const { events: changes, stop } = await startWatch(app, actor, id, query);
  const events = openEventStream(request, reply);
  events.signal.addEventListener("abort", stop, { once: true });
  for await (const data of changes) await events.send({ data });
  events.close();
  return streamed;
}
