import { z } from "zod";
import type { App } from "#app.ts";
import { defineRoute, type Route } from "#http/define-route.ts";
import { fileErrors, machineErrors, notPermitted } from "#machines/errors.ts";
import { readErrors, runningErrors, sandboxTerminated } from "../sandboxes/errors.ts";
import { SandboxParams } from "../sandboxes/schema.ts";
import { makeDirectory, move, read, remove, stat, writeBatch, writeFile } from "./files.ts";
import { batchMaxBytes, fileBodyLimit } from "./limits.ts";
import { presign } from "./presign.ts";
import {
  Batch,
  BatchResult,
  FileQuery,
  FileRead,
  FileStat,
  FileWrite,
  FileWritten,
  MakeDirectory,
  Move,
  Presign,
  Presigned,
} from "./schema.ts";

const common = {
  api: "sandbox",
  tag: "Files",
  params: SandboxParams,
  errors: [...runningErrors, ...machineErrors, ...fileErrors],
} as const;

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
    handler: ({ actor, params, body }) => writeFile(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/files",
    operationId: "readFile",
    summary: "Read a file or list a directory",
    scope: "sandboxes:read",
    query: FileQuery,
    responses: { 200: FileRead },
    handler: ({ actor, params, query }) => read(app, actor, params.id, query.path),
  }),
  defineRoute({
    ...common,
    method: "DELETE",
    path: "/v1/sandboxes/{id}/files",
    operationId: "deleteFile",
    summary: "Delete a file",
    scope: "sandboxes:write",
    query: FileQuery,
    responses: { 204: null },
    handler: ({ actor, params, query }) => remove(app, actor, params.id, query.path),
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
    handler: ({ actor, params, body }) => makeDirectory(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/move",
    operationId: "moveFile",
    summary: "Move or rename",
    scope: "sandboxes:write",
    body: Move,
    responses: { 200: z.object({ from: z.string(), to: z.string() }).meta({ id: "FileMoved" }) },
    handler: ({ actor, params, body }) => move(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "GET",
    path: "/v1/sandboxes/{id}/files/stat",
    operationId: "statFile",
    summary: "Stat a path; answers exists=false instead of 404",
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
    description: "A file that fails does not stop the rest: look at every row's `error`.",
    scope: "sandboxes:write",
    body: Batch,
    bodyLimit: batchMaxBytes,
    responses: { 200: BatchResult },
    handler: ({ actor, params, body }) => writeBatch(app, actor, params.id, body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/presign-download",
    operationId: "presignDownload",
    summary: "A URL to download a file without a token",
    description:
      "GET streams the file as an attachment, with ranges; HEAD tells its size. It works on paused sandboxes too: its first use wakes one that has `auto_resume`.",
    scope: "sandboxes:read",
    body: Presign,
    responses: { 200: Presigned },
    errors: [...readErrors, sandboxTerminated],
    handler: ({ actor, params, body }) => presign(app, actor, params.id, "GET", body),
  }),
  defineRoute({
    ...common,
    method: "POST",
    path: "/v1/sandboxes/{id}/files/presign-upload",
    operationId: "presignUpload",
    summary: "A URL to upload a file without a token",
    description:
      "PUT takes the raw bytes, up to 512 MiB, and needs a `Content-Length`; the file appears whole, with mode 0644, or not at all.",
    scope: "sandboxes:write",
    body: Presign,
    responses: { 200: Presigned },
    errors: [...readErrors, sandboxTerminated, notPermitted],
    handler: ({ actor, params, body }) => presign(app, actor, params.id, "PUT", body),
  }),
];
